// Breaks the parallel model on purpose, one fault at a time, and demands that the bits of a mesh
// against those of one rank, or the comparison of replicas, notice every one.
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <string>

#include <doctest/doctest.h>

#include "golden/golden_file.h"
#include "golden/sweep.h"
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

// The same through the sweep: its table says which mesh differs, its exit code that one does.
TEST_CASE("a sweep notices logits that are not one rank's") {
  install_host_kernels();
  const std::filesystem::path root = DEEPINFER_SIM_SOURCE_DIR;
  const CheckConfig config = load_check_config(root / "configs" / "check.yaml", root);
  SweepOptions options;
  options.selection.suite_patterns = {"steady/official"};
  options.selection.prompt_pattern = "s33";
  options.meshes = {{1, 1, 2}, {1, 3, 1}};
  options.load = [](const std::filesystem::path& folder, const Numerics& numerics) {
    return TextModel::load(folder, numerics);
  };
  options.runner = [](const ParallelSizes& sizes) {
    RankRun run;
    run.sizes = sizes;
    run.executor = world_of(sizes.ranks()).executor;
    return make_rank_runner(run);
  };
  CHECK(run_sweep(config.suites, options).exit_code() == ExitCode::kMatch);
  // Changes bits, no token.
  const ScopedFault fault("own_maximum_for_narrow_probabilities");
  const SweepReport report = run_sweep(config.suites, options);
  CHECK(report.exit_code() == ExitCode::kMismatch);
  CHECK(!report.all_same());
  REQUIRE(report.suites.size() == 1);
  REQUIRE(report.suites[0].rows.size() == 2);
  CHECK(report.suites[0].rows[0].same);
  CHECK(!report.suites[0].rows[1].same);
  CHECK(report.rows_below_nine() == 0);
  std::ostringstream text;
  write_sweep(report, plain_style(), text);
  CHECK(text.str().find("DIFFERENT") != std::string::npos);
  CHECK(text.str().find("hashes DISAGREE") != std::string::npos);
}

}  // namespace
}  // namespace deepinfer
