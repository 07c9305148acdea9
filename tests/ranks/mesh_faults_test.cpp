// Breaks the parallel model on purpose, one fault at a time, and demands that the bits of a mesh
// against those of one rank, or the comparison of replicas, notice every one.
#include <cstdio>
#include <string>

#include <doctest/doctest.h>

#include "golden/golden_file.h"
#include "model/transformer.h"
#include "platform/fault.h"
#include "sim/ops/host_ops.h"
#include "tests/cluster/world.h"
#include "tools/rank_runner.h"

namespace deepinfer {
namespace {

const std::string kData = DEEPINFER_SIM_SOURCE_DIR "/golden/data/";

at::Tensor logits_of(const TextModel& model, const GoldenPrompt& prompt) {
  const SequencePtr sequence = model.new_sequence(static_cast<int64_t>(prompt.tokens.size()) + 2);
  const at::Tensor prefill = model.forward({{sequence.get(), prompt.tokens}});
  return at::cat({prefill, model.forward({{sequence.get(), {prompt.generated[0]}}})});
}

TEST_CASE("without a fault a mesh gives the bits of one rank, with one it is noticed") {
  install_host_kernels();
  const auto model = TextModel::load(kData + "steady", Numerics::official());
  const GoldenFile golden =
      GoldenFile::read(kData + "steady/golden-official.json", model->config(), model->plan());
  const GoldenPrompt& prompt = golden.prompts[3];  // 64 tokens: every rank has entries
  const at::Tensor expected = logits_of(*model, prompt);
  // Heads are merged by several ranks on the first, an o-group of two heads is on two ranks of the
  // second.
  const auto failure = [&]() -> std::string {
    for (const ParallelSizes& sizes : {ParallelSizes{2, 3, 4}, ParallelSizes{4, 3, 2}}) {
      RankRun run;
      run.sizes = sizes;
      run.executor = world_of(sizes.ranks()).executor;
      try {
        std::string found;
        make_rank_runner(run)(*model, nullptr, [&](const TextModel& leader) {
          if (!at::equal(logits_of(leader, prompt), expected)) found = "other logits";
        });
        if (!found.empty()) return found + " on " + sizes.text();
      } catch (const std::exception& error) {
        const std::string text = error.what();
        return text.substr(0, text.find('\n')) + ", on " + sizes.text();
      }
    }
    return "";
  };
  REQUIRE(failure() == "");
  int tried = 0;
  for (const FaultInfo& info : fault_list()) {
    if (!info.on_meshes) continue;
    ++tried;
    const ScopedFault fault(info.name);
    const std::string noticed = failure();
    std::printf("%-40s %s\n", std::string(info.name).c_str(),
                noticed.empty() ? "NOT NOTICED" : noticed.c_str());
    CHECK_MESSAGE(noticed != "", "survives: " << info.name << " (" << info.what << ")");
  }
  CHECK(tried >= 8);
}

}  // namespace
}  // namespace deepinfer
