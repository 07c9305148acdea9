// One rank and any mesh of ranks give the same logits, bit by bit: prefill, decode, several
// requests side by side, at every length where a window, a pair, a tile or a block ends.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "golden/golden_file.h"
#include "golden/sweep.h"
#include "model/transformer.h"
#include "platform/random.h"
#include "sim/ops/host_ops.h"
#include "tests/cluster/world.h"
#include "tests/random_seed.h"
#include "tests/support/checkpoint_files.h"
#include "tools/rank_runner.h"

namespace deepinfer {
namespace {

const std::string kData = DEEPINFER_SIM_SOURCE_DIR "/golden/data/";

using Prompts = std::vector<std::vector<int64_t>>;

std::shared_ptr<const TextModel> load(const std::filesystem::path& folder,
                                      const Numerics& numerics) {
  install_host_kernels();
  return TextModel::load(folder, numerics);
}

RankRun run_of(const ParallelSizes& sizes, ReplicaMode mode = ReplicaMode::kEvery) {
  RankRun run;
  run.sizes = sizes;
  run.replicated = mode;
  run.executor = world_of(sizes.ranks()).executor;
  return run;
}

// Lengths on both sides of every edge of the tiny models: windows of 16 and 24, pairs, candidate
// blocks of 4, tiles of 8 entries, 16 and 12 selected entries, and one tile round of 64 leaves.
Prompts prompts_at_edges(const ModelConfig& config, RandomStream& random,
                         const std::vector<int64_t>& lengths) {
  Prompts prompts;
  for (const int64_t length : lengths) {
    std::vector<int64_t>& prompt = prompts.emplace_back();
    for (int64_t i = 0; i < length; ++i) prompt.push_back(random.below(config.vocab_size));
  }
  return prompts;
}

const std::vector<int64_t> kEdges = {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 32, 33};

// Logits of every prompt row and of `steps` decoded tokens, prompts side by side, each prompt in
// chunks of at most `chunk` tokens.
at::Tensor generate(const TextModel& model, const Prompts& prompts, int64_t steps,
                    int64_t chunk = 1 << 20) {
  std::vector<SequencePtr> sequences;
  for (const auto& prompt : prompts) {
    sequences.push_back(model.new_sequence(static_cast<int64_t>(prompt.size()) + steps));
  }
  ForwardOptions all_rows;
  all_rows.all_rows = true;
  std::vector<at::Tensor> parts;
  std::vector<at::Tensor> last(prompts.size());
  for (int64_t begin = 0;; begin += chunk) {
    std::vector<Chunk> batch;
    std::vector<size_t> lanes;
    for (size_t i = 0; i < prompts.size(); ++i) {
      const auto count = static_cast<int64_t>(prompts[i].size());
      if (begin >= count) continue;
      const int64_t end = std::min(begin + chunk, count);
      batch.push_back({sequences[i].get(), {prompts[i].begin() + begin, prompts[i].begin() + end}});
      lanes.push_back(i);
    }
    if (batch.empty()) break;
    parts.push_back(model.forward(batch, all_rows));
    int64_t row = 0;
    for (size_t i = 0; i < batch.size(); ++i) {
      row += static_cast<int64_t>(batch[i].tokens.size());
      last[lanes[i]] = parts.back().narrow(0, row - 1, 1);
    }
  }
  at::Tensor logits = at::cat(last);
  for (int64_t step = 0; step < steps; ++step) {
    const at::Tensor tokens = greedy_tokens(logits);
    std::vector<Chunk> batch;
    for (size_t i = 0; i < prompts.size(); ++i) {
      batch.push_back({sequences[i].get(), {tokens[static_cast<int64_t>(i)].item<int64_t>()}});
    }
    logits = model.forward(batch);
    parts.push_back(logits);
  }
  return at::cat(parts);
}

at::Tensor on_ranks(const TextModel& model, const RankRun& run,
                    const std::function<at::Tensor(const TextModel&)>& body) {
  at::Tensor result;
  make_rank_runner(run)(model, nullptr, [&](const TextModel& leader) { result = body(leader); });
  return result;
}

// Equal bits, so that -0 and +0 differ and NaN equals itself.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && at::equal(a.view(at::kInt), b.view(at::kInt));
}

// Each axis by itself at every size of the list, and mixed ones of many shapes.
// TEST_MESH=2,3,4 tries that one alone.
std::vector<ParallelSizes> meshes_to_try(RandomStream& random, size_t mixed) {
  if (const char* given = std::getenv("TEST_MESH")) {
    ParallelSizes sizes;
    REQUIRE(std::sscanf(given, "%" SCNd64 ",%" SCNd64 ",%" SCNd64, &sizes.tensor, &sizes.context,
                        &sizes.expert) == 3);
    return {sizes};
  }
  std::vector<int64_t> worlds;
  for (int64_t ranks = 1; ranks <= 16; ++ranks) worlds.push_back(ranks);
  worlds.insert(worlds.end(), {18, 24, 32, 48, 63, 64});
  std::vector<ParallelSizes> meshes;
  for (const int64_t ranks : worlds) {
    meshes.push_back({ranks, 1, 1});
    meshes.push_back({1, ranks, 1});
    meshes.push_back({1, 1, ranks});
  }
  const std::vector<ParallelSizes> all = meshes_of(worlds, {}, {}, {});
  for (size_t i = 0; i < mixed; ++i) {
    meshes.push_back(all[static_cast<size_t>(random.below(static_cast<int64_t>(all.size())))]);
  }
  return meshes;
}

TEST_CASE("any mesh gives the bits of one rank") {
  struct Model {
    const char* folder;
    Numerics numerics;
    std::vector<int64_t> lengths;
  };
  std::vector<Model> models = {{"tiny", Numerics::plain(), kEdges},
                               {"steady", Numerics::official(), kEdges},
                               {"wide", Numerics::quant(), {1, 15, 16, 17, 33}},
                               {"wide", Numerics::official(), {2, 24, 25, 31}}};
  if (kSanitized) {
    for (Model& model : models) model.lengths = {3, 17};
  }
  RandomStream random(random_seed(1), "meshes", 0);
  for (const Model& one : models) {
    CAPTURE(one.folder);
    const auto model = load(kData + one.folder, one.numerics);
    const Prompts prompts = prompts_at_edges(model->config(), random, one.lengths);
    // The lanes of one rank are held against each prompt alone by the test "chunking".
    const at::Tensor expected = generate(*model, prompts, 3);
    std::vector<ParallelSizes> meshes = meshes_to_try(random, 30);
    if (kSanitized) meshes = {{2, 1, 1}, {1, 3, 1}, {1, 1, 5}, {2, 2, 4}, {3, 2, 4}};
    for (const ParallelSizes& sizes : meshes) {
      CAPTURE(sizes.text());
      const at::Tensor found =
          on_ranks(*model, run_of(sizes, ReplicaMode::kOnce),
                   [&](const TextModel& leader) { return generate(leader, prompts, 3); });
      CHECK(same_bits(found, expected));
    }
    std::cout << one.folder << ", " << describe(one.numerics) << ": " << meshes.size()
              << " meshes\n";
  }
}

TEST_CASE("prompt chunks and long prompts on meshes") {
  RandomStream random(random_seed(2), "chunks", 0);
  const auto model = load(kData + "tiny-fp8", Numerics::official());
  const Prompts prompts = prompts_at_edges(model->config(), random, {41, 6, kSanitized ? 9 : 130});
  const at::Tensor expected = generate(*model, prompts, 2);
  for (const ParallelSizes& sizes :
       {ParallelSizes{2, 3, 1}, ParallelSizes{1, 4, 4}, ParallelSizes{1, 7, 2}}) {
    CAPTURE(sizes.text());
    // Rows come in another order, so chunked runs are held against the same chunks on one rank; the
    // last rows are those of the whole prompts.
    for (const int64_t chunk : {5, 16}) {
      const at::Tensor alone = generate(*model, prompts, 2, chunk);
      const at::Tensor found = on_ranks(*model, run_of(sizes), [&](const TextModel& leader) {
        return generate(leader, prompts, 2, chunk);
      });
      CHECK(same_bits(found, alone));
      CHECK(same_bits(found.slice(0, -6), expected.slice(0, -6)));
    }
  }
}

// Tiles go round the leaves every 512 entries.
TEST_CASE("prompts that go round the leaves more than once") {
  RandomStream random(random_seed(6), "rounds", 0);
  const auto model = load(kData + "steady", Numerics::official());
  const Prompts prompts = prompts_at_edges(
      model->config(), random,
      kSanitized ? std::vector<int64_t>{530, 3} : std::vector<int64_t>{1100, 3, 517});
  const at::Tensor expected = generate(*model, prompts, 3, 400);
  for (const ParallelSizes& sizes : {ParallelSizes{1, 64, 1}, ParallelSizes{2, 3, 4},
                                     ParallelSizes{3, 18, 9}, ParallelSizes{1, 5, 5}}) {
    CAPTURE(sizes.text());
    const RankRun run = run_of(sizes, ReplicaMode::kOnce);
    CHECK(same_bits(
        on_ranks(*model, run,
                 [&](const TextModel& leader) { return generate(leader, prompts, 3, 400); }),
        expected));
  }
}

// Every rank computes and compares, or one does for all; one worker, two, in shuffled orders, or a
// thread for each rank.
TEST_CASE("executors, schedules and replica modes change no bit") {
  RandomStream random(random_seed(3), "schedules", 0);
  const auto model = load(kData + "tiny-fp8", Numerics::official());
  const Prompts prompts = prompts_at_edges(model->config(), random, {17, 3});
  const at::Tensor expected = generate(*model, prompts, 2);
  const auto found = [&](const RankRun& run) {
    return on_ranks(*model, run,
                    [&](const TextModel& leader) { return generate(leader, prompts, 2); });
  };
  for (const ReplicaMode mode : {ReplicaMode::kEvery, ReplicaMode::kOnce}) {
    CAPTURE(replica_mode_name(mode));
    for (const ParallelSizes& sizes : {ParallelSizes{2, 2, 4}, ParallelSizes{1, 3, 2}}) {
      CAPTURE(sizes.text());
      for (const ClusterOptions& options : executors(sizes.ranks())) {
        RankRun run = run_of(sizes, mode);
        run.executor = options.executor;
        CHECK(same_bits(found(run), expected));
      }
    }
  }
  if (!kFibersToo) return;
  int schedules = 0;
  for (uint64_t seed = 1; seed <= (kSanitized ? 5 : 100); ++seed) {
    CAPTURE(seed);
    RankRun run = run_of({2, 2, 4}, seed % 2 == 0 ? ReplicaMode::kEvery : ReplicaMode::kOnce);
    run.executor.schedule = seed;
    CHECK(same_bits(found(run), expected));
    ++schedules;
  }
  std::cout << schedules << " schedules, one result\n";
}

// Sees the selections of the index sources.
class SelectionObserver final : public Observer {
 public:
  std::vector<at::Tensor> selections;
  void value(std::string_view name, int64_t layer, const at::Tensor& tensor) override {
    (void)layer;
    if (name == "topk") selections.push_back(tensor.clone());
  }
};

// Who looks on computes everything itself; the caches that ranks share are written once all the
// same.
TEST_CASE("observed forwards may stand between others") {
  RandomStream random(random_seed(5), "observed", 0);
  const auto model = load(kData + "tiny-fp8", Numerics::official());
  const Prompts prompts = prompts_at_edges(model->config(), random, {31});
  const auto steps = [&](const TextModel& running) {
    SelectionObserver observer;
    ForwardOptions observed;
    observed.observer = &observer;
    const SequencePtr sequence = running.new_sequence(50);
    std::vector<at::Tensor> parts = {running.forward({{sequence.get(), prompts[0]}}, observed)};
    for (int64_t token = 0; token < 12; ++token) {
      const bool watched = token % 4 == 3;
      parts.push_back(
          running.forward({{sequence.get(), {token}}}, watched ? observed : ForwardOptions{}));
    }
    return at::cat(parts);
  };
  const at::Tensor expected = steps(*model);
  for (const ReplicaMode mode : {ReplicaMode::kEvery, ReplicaMode::kOnce}) {
    CAPTURE(replica_mode_name(mode));
    for (const ParallelSizes& sizes : {ParallelSizes{4, 1, 1}, ParallelSizes{2, 3, 4}}) {
      CAPTURE(sizes.text());
      RankRun run = run_of(sizes, mode);
      CHECK(same_bits(on_ranks(*model, run, steps), expected));
      for (uint64_t seed = 1; kFibersToo && seed <= 5; ++seed) {
        CAPTURE(seed);
        run.executor.schedule = seed;
        CHECK(same_bits(on_ranks(*model, run, steps), expected));
      }
    }
  }
}

// Without head weights every index score is +0: which entries are selected is up to the ties alone.
TEST_CASE("equal index scores select the same entries on all sizes and schedules") {
  test::TempFolder folder;
  test::EditedCheckpoint edited("tiny-fp8");
  for (test::RawTensor& tensor : edited.tensors) {
    if (tensor.name.find("weights_proj") == std::string::npos) continue;
    std::fill(tensor.bytes.begin(), tensor.bytes.end(), '\0');
  }
  edited.write(folder.path());
  const auto model = load(folder.path(), Numerics::official());
  RandomStream random(random_seed(4), "ties", 0);
  const Prompts prompts = prompts_at_edges(model->config(), random, {70});
  const auto selections = [&](const TextModel& running) {
    SelectionObserver observer;
    ForwardOptions options;
    options.observer = &observer;
    const SequencePtr sequence = running.new_sequence(80);
    running.forward({{sequence.get(), prompts[0]}}, options);
    running.forward({{sequence.get(), {5}}}, options);
    std::vector<at::Tensor> flat;
    for (const at::Tensor& one : observer.selections) flat.push_back(one.reshape({-1}));
    return at::cat(flat);
  };
  const at::Tensor expected = selections(*model);
  // The first index source at the last prompt row: 35 pairs are visible, of equal scores, so the
  // first 16 are selected.
  const int64_t k = model->config().index_topk;
  CHECK(at::equal(expected.slice(0, 69 * k, 70 * k), at::arange(k, at::kInt)));
  for (const ParallelSizes& sizes :
       {ParallelSizes{1, 2, 1}, ParallelSizes{1, 3, 1}, ParallelSizes{2, 5, 1},
        ParallelSizes{1, 64, 1}, ParallelSizes{1, 18, 9}, ParallelSizes{1, 63, 1}}) {
    if (kSanitized && sizes.ranks() > 10) continue;
    CAPTURE(sizes.text());
    for (const uint64_t seed : {1, 2}) {
      if (seed > 1 && sizes.ranks() > 10) continue;
      RankRun run = run_of(sizes);
      if (kFibersToo) run.executor.schedule = seed;
      CHECK(at::equal(on_ranks(*model, run, selections), expected));
    }
  }
}

// The golden's own values, fed layer by layer to every rank, and tokens: the whole check on a mesh.
TEST_CASE("the golden check passes on meshes") {
  const std::filesystem::path root = DEEPINFER_SIM_SOURCE_DIR;
  const CheckConfig config = load_check_config(root / "configs" / "check.yaml", root);
  for (const ParallelSizes& sizes : {ParallelSizes{2, 2, 4}, ParallelSizes{3, 5, 1}}) {
    if (kSanitized && sizes.ranks() > 10) continue;
    CAPTURE(sizes.text());
    RunOptions options;
    options.selection.suite_patterns = {"steady/official", "wide/quant"};
    options.selection.prompt_pattern = "s33";
    options.run = make_rank_runner(run_of(sizes));
    install_host_kernels();
    const CheckReport report = run_check(config.suites, options);
    CHECK(report.exit_code() == ExitCode::kMatch);
    CHECK(report.counts().at_nine == 2);
    for (const SuiteReport& suite : report.suites) {
      REQUIRE(suite.prompts.size() == 1);
      CHECK(suite.prompts[0].layers.has_value());
      CHECK(suite.coverage.count(Path::kGroupClosed) > 0);
    }
  }
}

// Counted once, whoever computes: what all ranks together covered is what one rank covers.
TEST_CASE("coverage does not depend on the mesh") {
  const auto model = load(kData + "tiny-fp8", Numerics::official());
  const GoldenFile golden =
      GoldenFile::read(kData + "tiny-fp8/golden-official.json", model->config(), model->plan());
  const auto covered = [&](const ModelRunner& runner) {
    Coverage coverage;
    runner(*model, &coverage, [&](const TextModel& running) {
      ForwardOptions options;
      options.coverage = &coverage;
      for (const GoldenPrompt& prompt : golden.prompts) {
        const SequencePtr sequence = running.new_sequence(100);
        running.forward({{sequence.get(), prompt.tokens}}, options);
        running.forward({{sequence.get(), {prompt.generated[0]}}}, options);
      }
    });
    std::map<std::string, int64_t> counts;
    for (const PathInfo& path : all_paths()) {
      counts[std::string(path.name)] = coverage.count(path.path);
    }
    return counts;
  };
  const auto alone = covered([](const TextModel& one, Coverage*, const auto& body) { body(one); });
  for (const ReplicaMode mode : {ReplicaMode::kEvery, ReplicaMode::kOnce}) {
    for (const ParallelSizes& sizes : {ParallelSizes{2, 2, 2}, ParallelSizes{1, 3, 5}}) {
      CAPTURE(sizes.text());
      RankRun run = run_of(sizes, mode);
      if (kFibersToo) run.executor.workers = 1;
      CHECK(covered(make_rank_runner(run)) == alone);
    }
  }
}

}  // namespace
}  // namespace deepinfer
