// Any chunking of the prompt, down to a token a forward, gives the same tokens and logits.
#include <algorithm>
#include <iostream>

#include "golden/generation_check.h"

// After ATen's headers: some builds of libtorch define a CHECK of their own, which ends the
// program.
#include <doctest/doctest.h>

#include "golden/golden_file.h"

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

void check_chunkings(const std::string& folder, const std::string& golden_name) {
  CAPTURE(folder);
  const auto model = TextModel::load(kData + folder, Numerics::plain());
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
      // The bound for fp32 plain; bits become equal with kernels of a fixed order.
      CHECK(difference.largest <= 5e-5);
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

TEST_CASE("tiny") { check_chunkings("tiny", "golden-plain.json"); }
TEST_CASE("tiny, long") { check_chunkings("tiny", "golden-long-plain.json"); }
TEST_CASE("tiny-fp8") { check_chunkings("tiny-fp8", "golden-plain.json"); }
TEST_CASE("steady") { check_chunkings("steady", "golden-plain.json"); }
TEST_CASE("wide") { check_chunkings("wide", "golden-plain.json"); }

}  // namespace
}  // namespace deepinfer
