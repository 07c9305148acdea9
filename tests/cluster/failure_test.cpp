// What a desync, a hang and an exception of one rank look like.
#include <atomic>
#include <chrono>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>

#include <doctest/doctest.h>

#include "platform/errors.h"
#include "sim/cluster/cluster.h"
#include "tests/cluster/world.h"

namespace deepinfer {
namespace {

using Program = std::function<void(RankContext&)>;
using Clock = std::chrono::steady_clock;

struct Failure {
  std::string text;
  ExitCode code = ExitCode::kMatch;
  double seconds_after_last_block = 0;
};

// Runs a program that must fail, and checks that no rank outlives the run.
Failure failure_of(const ClusterOptions& options, const Program& program) {
  std::atomic<int64_t> begun = 0, over = 0;
  struct Guard {
    std::atomic<int64_t>& count;
    ~Guard() { ++count; }
  };
  Failure failure;
  try {
    run_cluster(options, [&](RankContext& context) {
      ++begun;
      const Guard guard{over};  // unwinding runs destructors
      program(context);
    });
  } catch (const Error& error) {
    failure.text = error.what();
    failure.code = error.exit_code();
  }
  CHECK(begun == options.ranks);
  CHECK(over == options.ranks);
  return failure;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Every executor reports it, with exit code 3.
void require_report(int64_t ranks, const Program& program, const std::vector<std::string>& parts) {
  on_every_executor(ranks, [&](const ClusterOptions& options) {
    const Failure failure = failure_of(options, program);
    CAPTURE(failure.text);
    CHECK(failure.code == ExitCode::kCollective);
    for (const std::string& part : parts) {
      CAPTURE(part);
      CHECK(has(failure.text, part));
    }
  });
}

void gather(RankContext& context, const Group& group, int64_t count,
            CallSite site = CallSite::here()) {
  std::vector<float> in(static_cast<size_t>(count)),
      out(in.size() * static_cast<size_t>(group.size()));
  context.communicator.all_gather(fp32(std::as_const(in)), fp32(out), group, site);
}

TEST_CASE("a rank skips a collective") {
  require_report(
      4,
      [](RankContext& context) {
        const GroupPtr world = context.communicator.world();
        context.communicator.barrier(*world);
        if (context.rank != 2) gather(context, *world, 3);
      },
      {"missing collectives status", "suspected hang in collectives operation 1",
       "ranks 0-1, 3: waits in all_gather #1 fp32 [3] in [[0, 1, 2, 3]] at failure_test.cpp:",
       "rank 2: ended; last finished barrier #0", "rank 2 never came to all_gather #1"});
}

TEST_CASE("a rank calls another collective, shape, dtype, root or list") {
  const auto differ = [](const Program& program, const std::string& what) {
    require_report(3, program, {what, "rank 0: ", "rank 1: ", "failure_test.cpp:"});
  };
  differ(
      [](RankContext& context) {
        const GroupPtr world = context.communicator.world();
        if (context.rank == 1) {
          context.communicator.barrier(*world);
        } else {
          gather(context, *world, 2);
        }
      },
      "ranks disagree in a collective: operation");
  differ(
      [](RankContext& context) {
        gather(context, *context.communicator.world(), context.rank == 1 ? 3 : 2);
      },
      "ranks disagree in a collective: shape");
  differ(
      [](RankContext& context) {
        int32_t word[3] = {};
        context.communicator.broadcast(
            {context.rank == 1 ? WireType::kInt32 : WireType::kFloat32, {3}, word}, 0,
            *context.communicator.world());
      },
      "ranks disagree in a collective: dtype");
  differ(
      [](RankContext& context) {
        std::vector<float> data(context.rank == 1 ? 1000 : 1);
        context.communicator.all_reduce_sum(fp32(std::as_const(data)), fp32(data),
                                            *context.communicator.world());
      },
      "ranks disagree in a collective: shape");
  differ(
      [](RankContext& context) {
        float words[3] = {};
        const Buffer data{context.rank == 1 ? WireType::kBFloat16 : WireType::kFloat32, {3}, words};
        context.communicator.all_reduce_sum(data, data, *context.communicator.world());
      },
      "ranks disagree in a collective: dtype");
  differ(
      [](RankContext& context) {
        std::vector<float> word(1);
        context.communicator.broadcast(fp32(word), context.rank == 1 ? 1 : 0,
                                       *context.communicator.world());
      },
      "ranks disagree in a collective: root");
  differ(
      [](RankContext& context) {
        // The same own group in another list.
        const GroupPtr group = context.communicator.group(
            context.rank == 1 ? ReplicaGroups{{0, 1}, {2}} : ReplicaGroups{{2}, {0, 1}});
        context.communicator.barrier(*group);
      },
      "replica group signature mismatch ... likely caused by mismatched collectives between peers");
}

TEST_CASE("a rank finishes another tree") {
  const auto differ = [](const std::string& what, const ShardMap& usual, const ShardMap& other,
                         WireType other_type = WireType::kFloat32, int64_t other_count = 2,
                         size_t other_blocks = 1) {
    require_report(
        3,
        [&](RankContext& context) {
          const bool is_other = context.rank == 1;
          const ShardMap& map = is_other ? other : usual;
          const std::vector<const float*> none(
              map.subtrees_of_rank(context.rank).size() * (is_other ? other_blocks : 1), nullptr);
          float out[3];
          context.communicator.all_reduce_tree(
              map, none,
              {is_other ? other_type : WireType::kFloat32, {is_other ? other_count : 2}, out},
              *context.communicator.world());
        },
        {"ranks disagree in a collective: " + what, "rank 0: ", "rank 1: ", "failure_test.cpp:"});
  };
  const ShardMap heads = ShardMap::contiguous("heads", 6, 3);
  differ("sharded axis ('heads' and 'experts')", heads, ShardMap::contiguous("experts", 6, 3));
  differ("sharded axis", heads, ShardMap::contiguous("heads", 6, 3, 32));
  differ("sharded axis", heads, ShardMap::interleaved("heads", 3));
  differ("dtype", heads, heads, WireType::kBFloat16);
  differ("shape", heads, heads, WireType::kFloat32, 3);
  differ("number of blocks", heads, heads, WireType::kFloat32, 2, 2);
}

TEST_CASE("a rank calls a collective twice") {
  require_report(3,
                 [](RankContext& context) {
                   const GroupPtr world = context.communicator.world();
                   gather(context, *world, 1);
                   if (context.rank == 1) gather(context, *world, 1);
                 },
                 {"rank 1: waits in all_gather #1", "ranks 0, 2: ended", "ranks 0, 2 never came"});
}

TEST_CASE(
    "lists that name the same ranks in another order wait for ever, and the report says why") {
  require_report(2,
                 [](RankContext& context) {
                   const GroupPtr group = context.communicator.group(
                       context.rank == 0 ? ReplicaGroups{{0, 1}} : ReplicaGroups{{1, 0}});
                   context.communicator.barrier(*group);
                 },
                 {"replica group signature mismatch", "[[0, 1]]", "[[1, 0]]"});
}

TEST_CASE("a rank that is missing, in another group at another operation, is not said to misname") {
  on_every_executor(3, [](const ClusterOptions& options) {
    const Failure failure = failure_of(options, [](RankContext& context) {
      Communicator& comm = context.communicator;
      if (context.rank == 2) {
        comm.barrier(*comm.group({{2, 1}, {0}}));
      } else {
        gather(context, *comm.world(), 1);
      }
    });
    CAPTURE(failure.text);
    CHECK(has(failure.text, "rank 2 never came to all_gather #0"));
    CHECK(has(failure.text, "rank 1 never came to barrier #0"));
    CHECK(!has(failure.text, "signature mismatch"));
  });
}

TEST_CASE("a rank-local branch around a collective (an overflow that only one rank sees)") {
  require_report(4,
                 [](RankContext& context) {
                   const GroupPtr world = context.communicator.world();
                   const bool overflow = context.rank == 3;
                   if (overflow) gather(context, *world, 8);  // the rerun
                   std::vector<float> sum(4);
                   context.communicator.all_reduce_sum(fp32(std::as_const(sum)), fp32(sum), *world);
                 },
                 {"ranks disagree in a collective: operation", "all_gather #0 fp32 [8]",
                  "all_reduce(sum) #0 fp32 [4]"});
}

TEST_CASE("uneven all-to-all: counts that do not match") {
  require_report(
      2,
      [](RankContext& context) {
        const std::vector<int64_t> send = {1, 2}, receive = {1, context.rank == 0 ? 1 : 2};
        std::vector<float> in(3), out(static_cast<size_t>(receive[0] + receive[1]));
        context.communicator.all_to_all_v(fp32(std::as_const(in)), send, fp32(out), receive,
                                          *context.communicator.world());
      },
      {"count: member 0 sends 2 elements to member 1, which expects 1"});
}

TEST_CASE("uneven all-to-all: every pair is compared, both ways") {
  // What `from` sends to `to` is one more than that expects, the rest is 1 each.
  for (int64_t from = 0; from < 3; ++from) {
    for (int64_t to = 0; to < 3; ++to) {
      if (from == to) continue;
      std::ostringstream text;
      text << "count: member " << from << " sends 2 elements to member " << to
           << ", which expects 1";
      require_report(3,
                     [=](RankContext& context) {
                       std::vector<int64_t> send(3, 1), receive(3, 1);
                       if (context.rank == from) send[static_cast<size_t>(to)] = 2;
                       std::vector<float> in(context.rank == from ? 4 : 3), out(3);
                       context.communicator.all_to_all_v(fp32(std::as_const(in)), send, fp32(out),
                                                         receive, *context.communicator.world());
                     },
                     {text.str()});
    }
  }
}

TEST_CASE("what no member can be given is refused before it is written") {
  const auto refused = [](int64_t ranks, std::vector<int64_t> send, std::vector<int64_t> receive,
                          const std::string& what) {
    const Failure failure = failure_of(world_of(ranks), [&](RankContext& context) {
      int64_t in = 0, out = 0;
      for (const int64_t count : send) in += count;
      for (const int64_t count : receive) out += count;
      std::vector<float> from(static_cast<size_t>(in)), to(static_cast<size_t>(out));
      context.communicator.all_to_all_v(fp32(std::as_const(from)), send, fp32(to), receive,
                                        *context.communicator.world());
    });
    CAPTURE(failure.text);
    CHECK(has(failure.text, what));
  };
  refused(1, {4}, {1}, "sends itself another number");
  refused(2, {-1, 3}, {1, 1}, "a negative count");
  refused(2, {1, 1}, {1, -1}, "a negative count");
  refused(2, {1}, {1, 1}, "a count for each member");
  refused(2, {1, 1}, {1, 1, 1}, "a count for each member");
  for (const auto& [in, out] : {std::pair{3, 2}, std::pair{2, 3}}) {
    const Failure failure = failure_of(world_of(2), [&, in = in, out = out](RankContext& context) {
      const std::vector<int64_t> one_each = {1, 1};
      std::vector<float> from(static_cast<size_t>(in)), to(static_cast<size_t>(out));
      context.communicator.all_to_all_v(fp32(std::as_const(from)), one_each, fp32(to), one_each,
                                        *context.communicator.world());
    });
    CHECK(has(failure.text, "2 elements"));
  }
}

// The sanitizers end the process where memory runs out.
TEST_CASE("a failure inside a collective ends the run" * doctest::skip(kSanitized)) {
  on_every_executor(3, [](const ClusterOptions& options) {
    std::atomic<int64_t> over = 0;
    struct Guard {
      std::atomic<int64_t>& count;
      ~Guard() { ++count; }
    };
    // More elements than there is memory for: the maximum finds no room for its keys.
    CHECK_THROWS(run_cluster(options, [&](RankContext& context) {
      const Guard guard{over};
      const Shape huge = {Shape::kMostElements};
      float word = 0;
      context.communicator.all_reduce_max({WireType::kFloat32, huge, &word},
                                          {WireType::kFloat32, huge, &word},
                                          *context.communicator.world());
    }));
    CHECK(over == 3);
  });
}

TEST_CASE("a rank that throws while others share a large collective" * doctest::skip(!kFibersToo)) {
  ClusterOptions options = world_of(64);
  options.executor.workers = 2;
  std::atomic<int64_t> wrong = 0;
  for (int round = 0; round < 100; ++round) {
    const Failure failure = failure_of(options, [&](RankContext& context) {
      std::vector<int64_t> most, rest;
      for (int64_t r = 0; r < 63; ++r) most.push_back(r);
      rest.push_back(63);
      const GroupPtr group = context.communicator.group({most, rest});
      std::vector<float> data(2048), all(data.size() * static_cast<size_t>(group->size()));
      for (int i = 0; context.rank != 63 || i < 3 + round; ++i) {
        // Who comes back has the result, whatever has happened meanwhile; and nobody's buffers go
        // while another worker is at them (which AddressSanitizer sees).
        data.assign(data.size(), 1);
        context.communicator.all_reduce_sum(fp32(std::as_const(data)), fp32(data), *group);
        wrong += data.back() != static_cast<float>(group->size());
        data.assign(data.size(), static_cast<float>(i));
        context.communicator.all_gather(fp32(std::as_const(data)), fp32(all), *group);
        wrong += all.back() != static_cast<float>(i);
        data.assign(data.size(), static_cast<float>(context.rank));
        context.communicator.broadcast(fp32(data), 0, *group);
        wrong += data.back() != static_cast<float>(group->members()[0]);
      }
      throw ConfigError({.what = "enough"});
    });
    CHECK(has(failure.text, "enough"));
    CHECK(has(failure.text, "rank 63"));
  }
  CHECK(wrong == 0);
}

TEST_CASE("buffers stay while another worker is at them, though the run ends") {
  for (const ClusterOptions& options : executors(4)) {
    if (options.executor.kind == ExecutorKind::kFibers && options.executor.workers != 2) continue;
    std::atomic<bool> begins = false;
    const Failure failure = failure_of(options, [&](RankContext& context) {
      Communicator& comm = context.communicator;
      const GroupPtr three = comm.group({{0, 1, 2}, {3}}), outer = comm.group({{0, 3}, {1, 2}});
      if (context.rank == 0 || context.rank == 3) {
        for (int i = 0; i < 100; ++i) comm.barrier(*outer);  // until ranks 1 and 2 wait
      }
      if (context.rank == 3) {
        while (!begins) std::this_thread::yield();
        throw ConfigError({.what = "enough"});
      }
      // Milliseconds of copies by rank 0; memory of this size is given back when it is freed, so
      // that a copy to it would be the end of the process.
      std::vector<float> data(size_t{4} << 20);
      if (context.rank == 0) begins = true;
      comm.broadcast(fp32(data), 0, *three);
      comm.barrier(*comm.world());
    });
    CHECK(has(failure.text, "enough"));
  }
}

TEST_CASE("an exception of one rank ends all others and is reported with the rank") {
  on_every_executor(5, [](const ClusterOptions& options) {
    const Failure failure = failure_of(options, [](RankContext& context) {
      const GroupPtr world = context.communicator.world();
      context.communicator.barrier(*world);
      if (context.rank == 3) {
        throw CheckpointError({.what = "a tensor is missing", .where = "model.safetensors"});
      }
      for (;;) context.communicator.barrier(*world);
    });
    CHECK(has(failure.text, "a tensor is missing"));
    CHECK(has(failure.text, "rank 3, model.safetensors"));
    CHECK(failure.code == ExitCode::kBadInput);
    try {
      run_cluster(options, [](RankContext& context) {
        if (context.rank == 1) throw std::length_error("too long");
        context.communicator.barrier(*context.communicator.world());
      });
      FAIL("no exception");
    } catch (const std::runtime_error& error) {
      CHECK(std::string(error.what()) == "rank 1: too long");
    }
  });
}

TEST_CASE("the first failure is the one that is reported") {
  on_every_executor(3, [](const ClusterOptions& options) {
    const Failure failure = failure_of(options, [](RankContext& context) {
      if (context.rank == 2) throw ConfigError({.what = "the first"});
      try {
        for (;;) context.communicator.barrier(*context.communicator.world());
      } catch (...) {
        throw CheckpointError({.what = "a later one"});
      }
    });
    CHECK(has(failure.text, "the first"));
    CHECK(has(failure.text, "rank 2"));
  });
}

TEST_CASE("a rank that goes on after the end finds nobody's buffers") {
  // AddressSanitizer sees a reduction of what rank 2 has left behind.
  on_every_executor(4, [](const ClusterOptions& options) {
    const Failure failure = failure_of(options, [](RankContext& context) {
      Communicator& comm = context.communicator;
      const GroupPtr pair = comm.group({{0, 3}, {1, 2}});
      const auto sum = [&] {
        std::vector<float> data(1000, 1.0f);
        comm.all_reduce_sum(fp32(std::as_const(data)), fp32(data), *comm.world());
      };
      if (context.rank == 2) sum();
      if (context.rank == 3) {
        try {
          comm.barrier(*pair);
        } catch (...) {
          sum();
        }
      }
      // Long enough for ranks 2 and 3 to wait.
      for (int i = 0; context.rank < 2 && i < 200; ++i) comm.barrier(*comm.group({{0, 1}}));
      if (context.rank == 0) throw ConfigError({.what = "enough"});
    });
    CHECK(has(failure.text, "enough"));
  });
}

TEST_CASE("a program that swallows exceptions is ended all the same") {
  require_report(3,
                 [](RankContext& context) {
                   for (int i = 0; i < 3; ++i) {
                     try {
                       gather(context, *context.communicator.world(), context.rank == 0 ? 2 : 1);
                     } catch (const std::exception&) {
                     }
                   }
                 },
                 {"shape"});
}

TEST_CASE("groups and buffers that cannot be are refused where they are named") {
  const auto refused = [](const Program& program, const std::string& what) {
    const Failure failure = failure_of(world_of(4), program);
    CAPTURE(failure.text);
    CHECK(has(failure.text, what));
  };
  refused(
      [](RankContext& c) {
        c.communicator.group({{0, 1}, {2}});
      },
      "replica groups ([[0, 1], [2]]) does not have myself 3");
  refused([](RankContext& c) { c.communicator.group({{0, 1}, {1, 2, 3}}); }, "overlap: rank 1");
  refused(
      [](RankContext& c) {
        c.communicator.group({{0, 1, 2, 3, 4}});
      },
      "rank 4, which does not exist");
  refused([](RankContext& c) { gather(c, *c.communicator.group({{0, 0}}), 1); }, "overlap: rank 0");
  refused(
      [](RankContext& c) {
        std::vector<float> in(2), out(3);
        c.communicator.all_gather(fp32(std::as_const(in)), fp32(out), *c.communicator.world());
      },
      "8 elements");
  refused(
      [](RankContext& c) {
        int32_t flag = 1;
        c.communicator.all_reduce_max({WireType::kInt32, {1}, &flag},
                                      {WireType::kInt32, {1}, &flag}, *c.communicator.world());
      },
      "EVRF061");
  for (const int64_t peer : {0, 1, 2, 3, 4, -1}) {
    refused(
        [=](RankContext& c) {
          std::vector<float> word(1);
          if (c.rank == peer || peer < 0 || peer > 3) {
            c.communicator.send(fp32(std::as_const(word)), peer);
          }
        },
        "a peer that is not another rank");
  }
  for (const int64_t root : {-1, 4}) {
    refused(
        [=](RankContext& c) {
          std::vector<float> word(1);
          c.communicator.broadcast(fp32(word), root, *c.communicator.world());
        },
        "a root that is not in the group");
  }
  // In and out of other sizes or types.
  const auto refused_buffers = [&](const std::string& what, WireType in_type, int64_t in,
                                   WireType out_type, int64_t out,
                                   void (*call)(Communicator&, const ConstBuffer&, const Buffer&)) {
    refused(
        [=](RankContext& c) {
          float from[16] = {}, to[16] = {};
          call(c.communicator, {in_type, {in}, from}, {out_type, {out}, to});
        },
        what);
  };
  const auto sum = [](Communicator& comm, const ConstBuffer& in, const Buffer& out) {
    comm.all_reduce_sum(in, out, *comm.world());
  };
  const auto maximum = [](Communicator& comm, const ConstBuffer& in, const Buffer& out) {
    comm.all_reduce_max(in, out, *comm.world());
  };
  const auto all_gather = [](Communicator& comm, const ConstBuffer& in, const Buffer& out) {
    comm.all_gather(in, out, *comm.world());
  };
  const auto scatter = [](Communicator& comm, const ConstBuffer& in, const Buffer& out) {
    comm.reduce_scatter_sum(in, out, *comm.world());
  };
  const auto tree = [](Communicator& comm, const ConstBuffer& in, const Buffer& out) {
    const ShardMap map = ShardMap::contiguous("heads", 4, 4);
    const auto* partial = static_cast<const float*>(in.data);
    comm.all_reduce_tree(map, {&partial, 1}, out, *comm.world());
  };
  constexpr WireType kWide = WireType::kFloat32, kNarrow = WireType::kBFloat16,
                     kWords = WireType::kInt32;
  refused_buffers("input and output differ", kWide, 2, kWide, 3, sum);
  refused_buffers("input and output differ", kWide, 2, kNarrow, 2, sum);
  refused_buffers("input and output differ", kWide, 2, kWide, 3, maximum);
  refused_buffers("input and output differ", kWide, 2, kWords, 8, all_gather);
  refused_buffers("8 elements", kWide, 2, kWide, 9, all_gather);
  refused_buffers("input and output differ", kWide, 8, kNarrow, 2, scatter);
  refused_buffers("8 elements", kWide, 9, kWide, 2, scatter);
  for (const WireType type : {kWords, WireType::kUint8}) {
    refused_buffers("EVRF061", type, 2, type, 2, sum);
    refused_buffers("EVRF061", type, 2, type, 2, maximum);
    refused_buffers("EVRF061", type, 8, type, 2, scatter);
    refused_buffers("EVRF061", type, 2, type, 2, tree);
  }
}

TEST_CASE("a group is used by the rank and in the cluster that it was made for") {
  GroupPtr of_rank_0;
  CHECK_THROWS_WITH(run_cluster(world_of(2),
                                [&](RankContext& context) {
                                  Communicator& comm = context.communicator;
                                  if (context.rank == 0) of_rank_0 = comm.world();
                                  comm.barrier(*comm.world());
                                  if (context.rank == 1) comm.barrier(*of_rank_0);
                                  comm.barrier(*comm.world());
                                  of_rank_0 = nullptr;
                                }),
                    doctest::Contains("rank 1 uses a group of rank 0"));
  of_rank_0 = nullptr;
  CHECK_THROWS_WITH(run_cluster(world_of(1),
                                [](RankContext& context) {
                                  const GroupPtr outer = context.communicator.world();
                                  run_cluster(world_of(1), [&](RankContext& inner) {
                                    inner.communicator.barrier(*outer);
                                  });
                                }),
                    doctest::Contains("or of another cluster"));
}

TEST_CASE("one rank of 64 leaves: the report comes without a timer, and says how soon") {
  for (const ClusterOptions& options : executors(64)) {
    Clock::time_point last;
    CHECK_THROWS_AS(run_cluster(options,
                                [&](RankContext& context) {
                                  const GroupPtr world = context.communicator.world();
                                  if (context.rank == 5) {
                                    last = Clock::now();
                                    return;
                                  }
                                  gather(context, *world, 16);
                                }),
                    CollectiveError);
    // From the moment the missing rank left to the error in the caller's hand.
    MESSAGE(executor_name(options.executor.kind)
            << ": " << std::chrono::duration<double, std::milli>(Clock::now() - last).count()
            << " ms");
  }
}

}  // namespace
}  // namespace deepinfer
