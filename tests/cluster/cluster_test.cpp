// Collectives give what they should, in the fixed order, on every executor and schedule.
#include "sim/cluster/cluster.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>

#include <doctest/doctest.h>

#include "platform/errors.h"
#include "platform/random.h"
#include "tests/cluster/world.h"
#include "tests/random_seed.h"

namespace deepinfer {
namespace {

// Doctest's checks are not made for many threads at once: ranks count, the test compares.
class Tally {
 public:
  void expect(bool holds) { wrong_ += holds ? 0 : 1; }
  int64_t wrong() const { return wrong_; }

 private:
  std::atomic<int64_t> wrong_ = 0;
};

std::vector<float> values_of(uint64_t seed, int64_t rank, int64_t count) {
  RandomStream random(seed, "values", static_cast<uint32_t>(rank));
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values)
    value = random.uniform() * std::ldexp(1.0f, static_cast<int>(random.below(20)) - 10);
  return values;
}

// The tree C2.5 over members in order, neighbours first, a missing one skipped.
float tree_sum(std::vector<float> values) {
  while (values.size() > 1) {
    std::vector<float> next;
    for (size_t i = 0; i < values.size(); i += 2) {
      next.push_back(i + 1 < values.size() ? values[i] + values[i + 1] : values[i]);
    }
    values = std::move(next);
  }
  return values[0];
}

bool same_bits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

TEST_CASE("all_reduce sums in the fixed tree and gives all the same bits") {
  const uint64_t seed = random_seed(31);
  for (const int64_t ranks : {1, 2, 3, 5, 8, 18, 63, 64}) {
    CAPTURE(ranks);
    const int64_t count = 37;
    std::vector<float> expected(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      std::vector<float> column;
      for (int64_t r = 0; r < ranks; ++r)
        column.push_back(values_of(seed, r, count)[static_cast<size_t>(i)]);
      expected[static_cast<size_t>(i)] = tree_sum(column);
    }
    on_every_executor(ranks, [&](const ClusterOptions& options) {
      Tally tally;
      run_cluster(options, [&](RankContext& context) {
        std::vector<float> data = values_of(seed, context.rank, count);
        Communicator& world = context.communicator;
        world.all_reduce_sum(fp32(std::as_const(data)), fp32(data), *world.world());
        for (size_t i = 0; i < data.size(); ++i) tally.expect(same_bits(data[i], expected[i]));
      });
      CHECK(tally.wrong() == 0);
    });
  }
}

TEST_CASE("a tree over leaves gives the same bits for any number of ranks") {
  const uint64_t seed = random_seed(32);
  const int64_t units = 50, count = 9;
  for (const bool interleaved : {false, true}) {
    std::vector<float> first;
    for (const int64_t ranks : {1, 2, 3, 5, 6, 7, 12, 18, 32, 63, 64}) {
      CAPTURE(interleaved);
      CAPTURE(ranks);
      const ShardMap map = interleaved ? ShardMap::interleaved("tiles", ranks)
                                       : ShardMap::contiguous("heads", units, ranks);
      std::vector<float> result(static_cast<size_t>(count));
      Tally tally;
      run_cluster(world_of(ranks), [&](RankContext& context) {
        // Each leaf holds the values of one unit, those past the last unit none.
        std::vector<std::vector<float>> sums;
        std::vector<const float*> partials;
        for (const Subtree& subtree : map.subtrees_of_rank(context.rank)) {
          std::vector<Subtree> present;
          std::vector<std::vector<float>> leaves;
          for (int64_t p = subtree.begin; p < subtree.begin + subtree.count; ++p) {
            const int64_t leaf = map.leaf_at_position(p);
            const bool has = interleaved ? leaf < units : !map.units_of_leaf(leaf).empty();
            if (!has) continue;
            present.push_back({p, 1});
            leaves.push_back(values_of(seed, leaf, count));
          }
          const int64_t at = reduce_tree(present, map.leaves(), [&](int64_t into, int64_t from) {
            for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
              leaves[static_cast<size_t>(into)][i] += leaves[static_cast<size_t>(from)][i];
            }
          });
          sums.push_back(at < 0 ? std::vector<float>() : leaves[static_cast<size_t>(at)]);
        }
        for (const auto& sum : sums) partials.push_back(sum.empty() ? nullptr : sum.data());
        std::vector<float> out(static_cast<size_t>(count));
        Communicator& world = context.communicator;
        world.all_reduce_tree(map, partials, fp32(out), *world.world());
        if (context.rank == 0) result = out;
        world.barrier(*world.world());
        for (size_t i = 0; i < out.size(); ++i) tally.expect(same_bits(out[i], result[i]));
      });
      CHECK(tally.wrong() == 0);
      if (first.empty()) first = result;
      CHECK(std::memcmp(first.data(), result.data(), first.size() * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("gather, scatter, broadcast, maximum, uneven all-to-all, send and receive") {
  const int64_t ranks = 6;
  on_every_executor(ranks, [&](const ClusterOptions& options) {
    Tally tally;
    const ClusterStatistics statistics = run_cluster(options, [&](RankContext& context) {
      Communicator& comm = context.communicator;
      const GroupPtr world = comm.world();
      const auto rank = static_cast<float>(context.rank);
      const auto at = static_cast<size_t>(context.rank);

      std::vector<float> own = {rank, 10 * rank}, all(2 * ranks);
      comm.all_gather(fp32(std::as_const(own)), fp32(all), *world);
      for (size_t r = 0; r < ranks; ++r) {
        tally.expect(all[2 * r] == static_cast<float>(r) &&
                     all[2 * r + 1] == 10 * static_cast<float>(r));
      }

      std::vector<float> pieces(ranks), sum(1);
      for (size_t i = 0; i < pieces.size(); ++i) pieces[i] = rank + 100 * static_cast<float>(i);
      comm.reduce_scatter_sum(fp32(std::as_const(pieces)), fp32(sum), *world);
      tally.expect(sum[0] == 15 + 600 * rank);

      std::vector<float> word = {rank};
      comm.broadcast(fp32(word), 4, *world);
      tally.expect(word[0] == 4);

      std::vector<float> mixed = {
          rank - 3, -rank, context.rank == 2 ? NAN : 1, -0.0f, context.rank == 3 ? INFINITY : rank,
          -INFINITY};
      if (context.rank == 5) mixed[3] = 0.0f;
      comm.all_reduce_max(fp32(std::as_const(mixed)), fp32(mixed), *world);
      tally.expect(mixed[0] == 2 && mixed[1] == 0 && std::isnan(mixed[2]) &&
                   same_bits(mixed[3], 0.0f) && mixed[4] == INFINITY && mixed[5] == -INFINITY);

      // Rank i sends i + j bytes, each its own number, to j.
      std::vector<int64_t> send, receive;
      for (int64_t j = 0; j < ranks; ++j) {
        send.push_back(context.rank + j), receive.push_back(context.rank + j);
      }
      int64_t total = 0;
      for (const int64_t count : send) total += count;
      std::vector<uint8_t> out(static_cast<size_t>(total), static_cast<uint8_t>(context.rank)),
          in(out.size());
      comm.all_to_all_v({WireType::kUint8, {total}, out.data()}, send,
                        {WireType::kUint8, {total}, in.data()}, receive, *world);
      size_t k = 0;
      for (size_t from = 0; from < ranks; ++from) {
        for (int64_t i = 0; i < receive[from]; ++i) tally.expect(in[k++] == from);
      }

      // A ring: evens send first.
      int32_t token = static_cast<int32_t>(context.rank), got = -1;
      const int64_t next = (context.rank + 1) % ranks,
                    previous = (context.rank + ranks - 1) % ranks;
      const ConstBuffer outgoing{WireType::kInt32, {1}, &token};
      const Buffer incoming{WireType::kInt32, {1}, &got};
      if (at % 2 == 0) {
        comm.send(outgoing, next);
        comm.receive(incoming, previous);
      } else {
        comm.receive(incoming, previous);
        comm.send(outgoing, next);
      }
      tally.expect(got == previous);
    });
    CHECK(tally.wrong() == 0);
    CHECK(statistics.collectives == 5 + ranks);
  });
}

TEST_CASE("large collectives are shared by workers, to the same bits" *
          doctest::skip(!kFibersToo)) {
  const uint64_t seed = random_seed(34);
  const int64_t count =
      4099;  // of 64 ranks: more than a worker does alone, and no multiple of slices
  for (const int64_t ranks : {8, 63, 64}) {
    CAPTURE(ranks);
    const int64_t length = count * 64 / ranks;
    std::vector<std::vector<float>> values;
    for (int64_t r = 0; r < ranks; ++r) values.push_back(values_of(seed, r, length));
    std::vector<float> sum, largest;
    for (size_t i = 0; i < static_cast<size_t>(length); ++i) {
      std::vector<float> column;
      for (const auto& of_rank : values) column.push_back(of_rank[i]);
      sum.push_back(tree_sum(column));
      largest.push_back(*std::max_element(column.begin(), column.end()));
    }
    const ShardMap map = ShardMap::contiguous("x", ranks, ranks);
    ClusterOptions options = world_of(ranks);
    options.executor.workers = 2;
    Tally tally;
    const ClusterStatistics statistics = run_cluster(options, [&](RankContext& context) {
      Communicator& comm = context.communicator;
      const GroupPtr world = comm.world();
      std::vector<int64_t> halves[2];
      for (int64_t r = 0; r < ranks; ++r) halves[r % 2].push_back(r);
      const GroupPtr half = comm.group({halves[0], halves[1]});
      const std::vector<float>& own = values[static_cast<size_t>(context.rank)];
      const auto same = [&](const std::vector<float>& a, const std::vector<float>& b) {
        tally.expect(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
      };
      for (int round = 0; round < 20; ++round) {
        std::vector<float> data = own;
        comm.all_reduce_sum(fp32(std::as_const(data)), fp32(data), *world);
        same(data, sum);
        data = own;
        comm.all_reduce_max(fp32(std::as_const(data)), fp32(data), *world);
        same(data, largest);
        std::vector<const float*> partials(map.subtrees_of_rank(context.rank).size(), nullptr);
        if (!map.units_of_rank(context.rank).empty()) partials[0] = own.data();
        if (partials.size() == 1) {  // ranks that are no power of two own several subtrees
          comm.all_reduce_tree(map, partials, fp32(data), *world);
          same(data, sum);
        }
        std::vector<float> all(own.size() * static_cast<size_t>(half->size()));
        comm.all_gather(fp32(own), fp32(all), *half);
        for (size_t i = 0; i < half->members().size(); ++i) {
          tally.expect(std::memcmp(all.data() + i * own.size(),
                                   values[static_cast<size_t>(half->members()[i])].data(),
                                   own.size() * sizeof(float)) == 0);
        }
      }
    });
    CHECK(tally.wrong() == 0);
    CHECK(statistics.shared >= 40);
  }
}

TEST_CASE("uneven all-to-all in place") {
  Tally tally;
  run_cluster(world_of(2), [&](RankContext& context) {
    const std::vector<int64_t> one_each = {1, 1};
    const auto base = static_cast<float>(10 * context.rank);
    std::vector<float> data = {base, base + 1};
    context.communicator.all_to_all_v(fp32(std::as_const(data)), one_each, fp32(data), one_each,
                                      *context.communicator.world());
    const auto mine = static_cast<float>(context.rank);
    tally.expect(data[0] == mine && data[1] == 10 + mine);
  });
  CHECK(tally.wrong() == 0);
}

TEST_CASE("bytes are what members hand in") {
  const ClusterStatistics statistics = run_cluster(world_of(4), [](RankContext& context) {
    Communicator& comm = context.communicator;
    std::vector<float> data(100), sum(100);
    comm.broadcast(fp32(data), 2, *comm.world());                              // 400
    comm.all_reduce_sum(fp32(std::as_const(data)), fp32(sum), *comm.world());  // 1600
    if (context.rank == 0) comm.send(fp32(std::as_const(data)), 1);            // 400
    if (context.rank == 1) comm.receive(fp32(data), 0);
    comm.barrier(*comm.world());
    const ShardMap map = ShardMap::contiguous("heads", 4, 4);
    const float* partial = context.rank == 3 ? nullptr : data.data();
    comm.all_reduce_tree(map, {&partial, 1}, fp32(sum), *comm.world());  // 1200
  });
  CHECK(statistics.bytes == 3600);
}

TEST_CASE("a rank may run a cluster of its own, and is woken afterwards") {
  on_every_executor(4, [](const ClusterOptions& options) {
    Tally tally;
    run_cluster(options, [&](RankContext& context) {
      Communicator& outer = context.communicator;
      for (int round = 0; round < 5; ++round) {
        outer.barrier(*outer.world());
        if (context.rank == 3 || context.rank == 1) {
          run_cluster(world_of(3), [&](RankContext& inner) {
            std::vector<float> one = {1};
            inner.communicator.all_reduce_sum(fp32(std::as_const(one)), fp32(one),
                                              *inner.communicator.world());
            tally.expect(one[0] == 3);
          });
        }
        std::vector<float> one = {1};
        outer.all_reduce_sum(fp32(std::as_const(one)), fp32(one), *outer.world());
        tally.expect(one[0] == 4);
      }
    });
    CHECK(tally.wrong() == 0);
  });
}

TEST_CASE("bf16 is summed in fp32 and rounded once") {
  Tally tally;
  run_cluster(world_of(3), [&](RankContext& context) {
    // 1 + 2^-9 + 2^-8: bf16 additions would round 1 + 2^-9 to 1 first, and then to 1.
    const uint16_t one = 0x3F80, small = 0x3B00;                                    // 2^-9
    uint16_t value = context.rank == 0 ? one : context.rank == 1 ? small : 0x3B80;  // 2^-8
    Communicator& comm = context.communicator;
    comm.all_reduce_sum({WireType::kBFloat16, {1}, &value}, {WireType::kBFloat16, {1}, &value},
                        *comm.world());
    tally.expect(value == 0x3F81);  // 1 + 2^-9 + 2^-8 is above the middle 1 + 2^-8
  });
  CHECK(tally.wrong() == 0);
}

TEST_CASE("two groups of the same members in another order gather each in its own order") {
  on_every_executor(4, [&](const ClusterOptions& options) {
    Tally tally;
    run_cluster(options, [&](RankContext& context) {
      Communicator& comm = context.communicator;
      const GroupPtr up = comm.group({{0, 1, 2, 3}}), down = comm.group({{3, 2, 1, 0}});
      const GroupPtr pairs = comm.group({{2, 0}, {1, 3}});
      for (int round = 0; round < 50; ++round) {
        // Back to back, with other contents each time.
        std::vector<float> own = {static_cast<float>(context.rank + 10 * round)}, a(4), b(4), c(2);
        comm.all_gather(fp32(std::as_const(own)), fp32(a), *up);
        own[0] += 1000;
        comm.all_gather(fp32(std::as_const(own)), fp32(b), *down);
        own[0] += 1000;
        comm.all_gather(fp32(std::as_const(own)), fp32(c), *pairs);
        for (size_t i = 0; i < 4; ++i) {
          tally.expect(a[i] == static_cast<float>(i) + static_cast<float>(10 * round));
          tally.expect(b[i] == 1003 - static_cast<float>(i) + static_cast<float>(10 * round));
        }
        const std::vector<float> pair =
            context.rank % 2 == 0 ? std::vector<float>{2, 0} : std::vector<float>{1, 3};
        for (size_t i = 0; i < 2; ++i)
          tally.expect(c[i] == 2000 + pair[i] + static_cast<float>(10 * round));
      }
    });
    CHECK(tally.wrong() == 0);
  });
}

TEST_CASE("a schedule seed changes the order of ranks and nothing else, and replays" *
          doctest::skip(!kFibersToo)) {
  const auto order_of = [](uint64_t seed) {
    std::vector<int64_t> order;
    ClusterOptions options = world_of(16);
    options.executor.schedule = seed;
    run_cluster(options, [&](RankContext& context) {
      for (int i = 0; i < 3; ++i) {
        order.push_back(context.rank);  // one worker
        context.communicator.barrier(*context.communicator.world());
      }
    });
    return order;
  };
  std::set<std::vector<int64_t>> orders;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto order = order_of(seed);
    CHECK(order.size() == 48);
    CHECK(order == order_of(seed));
    orders.insert(order);
  }
  CHECK(orders.size() == 20);
}

// A value by thread, as a library keeps it, that each task must find as it left it.
class ThreadValue final : public TaskLocals {
 public:
  explicit ThreadValue(int64_t ranks) {
    for (int64_t rank = 0; rank < ranks; ++rank) saved_.push_back(at_start(rank));
  }
  static int64_t at_start(int64_t rank) { return 100 + rank; }
  void leave(int64_t rank) override {
    saved_[static_cast<size_t>(rank)] = std::exchange(value, 0);
    --inside_;
  }
  void enter(int64_t rank) override {
    value = saved_[static_cast<size_t>(rank)];
    ++inside_;
  }
  int64_t inside() const { return inside_; }  // entered and not left

  static thread_local int64_t value;

 private:
  std::vector<int64_t> saved_;
  std::atomic<int64_t> inside_ = 0;
};
thread_local int64_t ThreadValue::value = 0;

TEST_CASE("what libraries keep by thread follows a rank") {
  on_every_executor(6, [](const ClusterOptions& options) {
    ThreadValue locals(options.ranks);
    Tally tally;
    run_cluster(
        options,
        [&](RankContext& context) {
          tally.expect(ThreadValue::value == ThreadValue::at_start(context.rank));
          for (int64_t round = 0; round < 5; ++round) {
            ThreadValue::value = 10 * context.rank + round;
            context.communicator.barrier(*context.communicator.world());
            tally.expect(ThreadValue::value == 10 * context.rank + round);
          }
        },
        &locals);
    CHECK(tally.wrong() == 0);
    CHECK(locals.inside() == 0);
    CHECK(ThreadValue::value == 0);
  });
}

TEST_CASE("an executor keeps an unpark that comes first; several are one") {
  on_every_executor(1, [](const ClusterOptions& options) {
    const std::unique_ptr<Executor> executor = Executor::make(options.executor, 1);
    const int64_t self = 0;
    int64_t stuck = 0, after_one = -1, after_two = -1;
    executor->run(
        [&](int64_t) {
          executor->unpark({&self, 1});
          executor->unpark({&self, 1});
          executor->park(0);
          after_one = stuck;
          executor->park(0);
          after_two = stuck;
        },
        [&] {
          ++stuck;
          executor->unpark({&self, 1});
        },
        nullptr);
    CHECK(after_one == 0);
    CHECK(after_two == 1);
  });
}

TEST_CASE("a rank that is left inside a catch block finds its exception again") {
  Tally tally;
  ClusterOptions options = world_of(8);
  options.executor.workers = 1;
  run_cluster(options, [&](RankContext& context) {
    try {
      throw context.rank;
    } catch (const int64_t&) {
      context.communicator.barrier(*context.communicator.world());
      try {
        throw;
      } catch (const int64_t& rank) {
        tally.expect(rank == context.rank);
      }
    }
  });
  CHECK(tally.wrong() == 0);
}

}  // namespace
}  // namespace deepinfer
