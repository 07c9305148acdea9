// Any chunking of the prompt, any batch and any number of threads give the same tokens and logits.
#include <algorithm>
#include <iostream>

#include "golden/generation_check.h"

// After ATen's headers: some builds of libtorch define a CHECK of their own, which ends the
// program.
#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include "golden/golden_file.h"
#include "sim/ops/host_ops.h"

namespace deepinfer {
namespace {

const std::string kData = DEEPINFER_SIM_SOURCE_DIR "/golden/data/";

// Logits of every prompt row and of every generated token's forward, [rows + steps - 1, vocab].
at::Tensor all_logits(const TextModel& model, const GoldenPrompt& prompt, int64_t chunk) {
  const auto count = static_cast<int64_t>(prompt.tokens.size());
  const auto steps = static_cast<int64_t>(prompt.generated.size());
  const SequencePtr sequence = model.new_sequence(count + steps);
  std::vector<at::Tensor> parts;
  ForwardOptions options;
  options.all_rows = true;
  for (int64_t begin = 0; begin < count; begin += chunk) {
    const int64_t end = std::min(begin + chunk, count);
    parts.push_back(model.forward(
        {{sequence.get(), {prompt.tokens.begin() + begin, prompt.tokens.begin() + end}}}, options));
  }
  for (int64_t step = 0; step + 1 < steps; ++step) {
    parts.push_back(
        model.forward({{sequence.get(), {prompt.generated[static_cast<size_t>(step)]}}}, options));
  }
  return at::cat(parts);
}

std::shared_ptr<const TextModel> load(const std::string& folder, Numerics numerics,
                                      Arithmetic arithmetic) {
  install_host_kernels();
  numerics.arithmetic = arithmetic;
  return TextModel::load(kData + folder, numerics);
}

void check_chunkings(const std::string& folder, const std::string& golden_name,
                     const Numerics& numerics, Arithmetic arithmetic, double bound) {
  CAPTURE(folder);
  const auto model = load(folder, numerics, arithmetic);
  const GoldenFile golden =
      GoldenFile::read(kData + folder + "/" + golden_name, model->config(), model->plan());
  for (const GoldenPrompt& prompt : golden.prompts) {
    CAPTURE(prompt.name);
    const auto count = static_cast<int64_t>(prompt.tokens.size());
    const at::Tensor whole = all_logits(*model, prompt, count);
    double largest = 0;
    for (const int64_t chunk : {1, 2, 3, 5, 7}) {
      if (chunk >= count && chunk > 1) continue;
      CAPTURE(chunk);
      const at::Tensor chunked = all_logits(*model, prompt, chunk);
      const NumberDifference difference = compare_numbers(chunked, whole);
      largest = std::max(largest, difference.largest);
      CHECK(difference.largest <= bound);
      if (bound == 0) CHECK(at::equal(chunked, whole));
      // The golden tokens' rows; elsewhere two logits may tie within the bound.
      const auto steps = static_cast<int64_t>(prompt.generated.size());
      const at::Tensor tokens = greedy_tokens(chunked.narrow(0, count - 1, steps));
      for (int64_t step = 0; step < steps; ++step) {
        CHECK(tokens[step].item<int64_t>() == prompt.generated[static_cast<size_t>(step)]);
      }
    }
    std::cout << folder << ' ' << prompt.name << ": chunks of 1, 2, 3, 5, 7 against one of "
              << count << ", largest logit difference " << largest << "\n";
  }
}

// Reference products depend on the BLAS, and its order of summation on the number of rows: 5e-5 is
// what fp32 allows.
TEST_CASE("reference, plain") {
  check_chunkings("tiny", "golden-plain.json", Numerics::plain(), Arithmetic::kReference, 5e-5);
  check_chunkings("wide", "golden-plain.json", Numerics::plain(), Arithmetic::kReference, 5e-5);
}

TEST_CASE("canonical, plain") {
  for (const char* folder : {"tiny", "tiny-fp8", "steady", "wide"}) {
    check_chunkings(folder, "golden-plain.json", Numerics::plain(), Arithmetic::kCanonical, 0);
  }
  check_chunkings("tiny", "golden-long-plain.json", Numerics::plain(), Arithmetic::kCanonical, 0);
}

TEST_CASE("canonical, quant and official") {
  for (const char* folder : {"steady", "wide"}) {
    check_chunkings(folder, "golden-quant.json", Numerics::quant(), Arithmetic::kCanonical, 0);
    check_chunkings(folder, "golden-official.json", Numerics::official(), Arithmetic::kCanonical,
                    0);
  }
}

// Every prompt alone, then all together in one batch, decoding side by side; then with two threads.
TEST_CASE("canonical logits do not depend on the batch or on threads") {
  for (const char* folder : {"tiny-fp8", "wide"}) {
    CAPTURE(folder);
    const auto model = load(folder, Numerics::official(), Arithmetic::kCanonical);
    const GoldenFile golden =
        GoldenFile::read(kData + folder + "/golden-official.json", model->config(), model->plan());
    const auto run = [&](bool together) {
      std::vector<SequencePtr> sequences;
      std::vector<Chunk> batch;
      for (const GoldenPrompt& prompt : golden.prompts) {
        sequences.push_back(model->new_sequence(static_cast<int64_t>(prompt.tokens.size()) + 3));
        batch.push_back({sequences.back().get(), prompt.tokens});
      }
      std::vector<at::Tensor> parts;
      for (size_t step = 0; step < 3; ++step) {
        if (together) {
          parts.push_back(model->forward(batch));
        } else {
          for (const Chunk& chunk : batch) parts.push_back(model->forward({chunk}));
        }
        for (size_t i = 0; i < batch.size(); ++i)
          batch[i].tokens = {golden.prompts[i].generated[step]};
      }
      return at::cat(parts);
    };
    const int threads = at::get_num_threads();
    at::set_num_threads(1);
    const at::Tensor alone = run(false);
    CHECK(at::equal(run(true), alone));
    at::set_num_threads(2);
    CHECK(at::equal(run(true), alone));
    at::set_num_threads(threads);
  }
}

}  // namespace
}  // namespace deepinfer
