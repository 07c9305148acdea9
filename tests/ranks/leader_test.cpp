// Rank 0 leads, the others follow: requests come and go, bad input stays on rank 0, a rank that
// computes something else is named.
#include "model/leader.h"

#include <string>

#include <doctest/doctest.h>

#include "model/transformer.h"
#include "platform/errors.h"
#include "platform/fault.h"
#include "sim/cluster/cluster.h"
#include "sim/ops/host_ops.h"
#include "sim/ops/rank_locals.h"
#include "tests/cluster/world.h"
#include "tools/rank_runner.h"

namespace deepinfer {
namespace {

const std::string kData = DEEPINFER_SIM_SOURCE_DIR "/golden/data/";

std::shared_ptr<const TextModel> tiny() {
  install_host_kernels();
  return TextModel::load(kData + "tiny", Numerics::plain());
}

RankRun run_of(const ParallelSizes& sizes) {
  RankRun run;
  run.sizes = sizes;
  run.executor = world_of(sizes.ranks()).executor;
  return run;
}

TEST_CASE("requests come and go in any order") {
  const auto model = tiny();
  make_rank_runner(run_of({1, 2, 2}))(*model, nullptr, [&](const TextModel& leader) {
    SequencePtr first = leader.new_sequence(20), second = leader.new_sequence(20);
    leader.forward({{second.get(), {1, 2, 3}}});
    leader.forward({{first.get(), {4, 5}}, {second.get(), {6}}});
    second.reset();
    SequencePtr third = leader.new_sequence(20);
    const at::Tensor found = leader.forward({{third.get(), {1, 2}}, {first.get(), {7}}});
    const SequencePtr alone = model->new_sequence(20), other = model->new_sequence(20);
    model->forward({{other.get(), {4, 5}}});
    CHECK(at::equal(found, model->forward({{alone.get(), {1, 2}}, {other.get(), {7}}})));
  });
}

TEST_CASE("bad input is refused by rank 0 and the run goes on") {
  const auto model = tiny();
  make_rank_runner(run_of({2, 1, 2}))(*model, nullptr, [&](const TextModel& leader) {
    const SequencePtr sequence = leader.new_sequence(4);
    CHECK_THROWS_AS(leader.forward({{sequence.get(), {1, 512}}}), ConfigError);
    CHECK_THROWS_AS(leader.forward({{sequence.get(), {1, 2, 3, 4, 5}}}), ConfigError);
    CHECK_THROWS_AS(leader.new_sequence(0), ConfigError);
    CHECK(leader.forward({{sequence.get(), {1, 2}}}).size(0) == 1);
  });
}

TEST_CASE("what the body throws ends the run and comes out with its rank") {
  const auto model = tiny();
  for (const ClusterOptions& options : executors(4)) {
    RankRun run = run_of({2, 2, 1});
    run.executor = options.executor;
    try {
      make_rank_runner(run)(*model, nullptr, [](const TextModel& leader) {
        const SequencePtr sequence = leader.new_sequence(4);
        leader.forward({{sequence.get(), {1}}});
        throw ConfigError({.what = "enough"});
      });
      FAIL("no error");
    } catch (const RankError& error) {
      CHECK(error.rank == 0);
      CHECK(error.exit_code() == ExitCode::kBadInput);
    }
  }
}

// The state that libtorch keeps by thread goes with the rank: outside of forwards a rank is not in
// inference mode, whatever rank ran last on its thread.
TEST_CASE("inference mode and arithmetic stay with the rank") {
  for (const ClusterOptions& options : executors(6)) {
    RankLocals locals(6);
    run_cluster(
        options,
        [](RankContext& context) {
          const bool odd = context.rank % 2 != 0;
          Communicator& communicator = context.communicator;
          CHECK(!c10::InferenceMode::is_enabled());
          communicator.barrier(*communicator.world());
          {
            const c10::InferenceMode inference(odd);
            const ArithmeticScope arithmetic(odd ? Arithmetic::kReference : Arithmetic::kCanonical);
            for (int i = 0; i < 3; ++i) {
              communicator.barrier(*communicator.world());
              CHECK(c10::InferenceMode::is_enabled() == odd);
              CHECK((current_arithmetic() == Arithmetic::kReference) == odd);
              CHECK(at::ones({1}).is_inference() == odd);
            }
          }
          communicator.barrier(*communicator.world());
          CHECK(!c10::InferenceMode::is_enabled());
        },
        &locals);
    CHECK(!c10::InferenceMode::is_enabled());
  }
}

#if defined(DEEPINFER_SIM_FAULT_INJECTION)
TEST_CASE("a rank that computes something else is named, with the op") {
  const auto model = tiny();
  const ScopedFault fault("one_rank_embeds_differently");
  for (const ClusterOptions& options : executors(6)) {
    RankRun run = run_of({1, 3, 2});
    run.executor = options.executor;
    try {
      make_rank_runner(run)(*model, nullptr, [](const TextModel& leader) {
        const SequencePtr sequence = leader.new_sequence(4);
        leader.forward({{sequence.get(), {1, 2, 3}}});
      });
      FAIL("nobody noticed");
    } catch (const Error& error) {
      const std::string message = error.what();
      CAPTURE(message);
      CHECK(error.exit_code() == ExitCode::kCollective);
      CHECK(message.find("rank 5 computed something else") != std::string::npos);
      CHECK(message.find("deepinfer::") != std::string::npos);
    }
  }
}
#endif

}  // namespace
}  // namespace deepinfer
