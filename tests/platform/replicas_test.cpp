// Results of replicas: matched call by call, compared, or computed once.
#include "platform/replicas.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

namespace deepinfer {
namespace {

// Ranks 0 .. 5: all alike; or even and odd ones.
Replicas six(ReplicaMode mode) {
  return Replicas(mode, 6,
                  {{"everything", {0, 0, 0, 0, 0, 0}}, {"equal parity", {0, 1, 0, 1, 0, 1}}});
}

std::string failure_of(const std::vector<uint64_t>& hashes, const std::vector<int64_t>& order) {
  Replicas replicas(ReplicaMode::kEvery, static_cast<int64_t>(hashes.size()),
                    {{"everything", std::vector<int64_t>(hashes.size(), 0)}});
  try {
    for (const int64_t rank : order) {
      replicas.compare(rank, 0, "op", hashes[static_cast<size_t>(rank)]);
    }
  } catch (const CollectiveError& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("equal hashes pass, in any order and with any lead") {
  Replicas replicas = six(ReplicaMode::kEvery);
  // Rank 5 is 100 calls ahead of the others.
  for (uint64_t call = 0; call < 100; ++call) replicas.compare(5, 0, "op", call);
  for (const int64_t rank : {3, 1, 0, 4, 2}) {
    for (uint64_t call = 0; call < 100; ++call) replicas.compare(rank, 0, "op", call);
  }
  // The partitions count for themselves: odd ranks may compute something else.
  for (int64_t rank = 0; rank < 6; ++rank) {
    replicas.compare(rank, 1, "op", static_cast<uint64_t>(rank % 2));
  }
  CHECK(replicas.members(3, 0) == 6);
  CHECK(replicas.members(3, 1) == 3);
  CHECK(replicas.is_first(1, 1));
  CHECK(!replicas.is_first(3, 1));
}

TEST_CASE("the rank that differs from most is named, whenever it comes") {
  for (const auto& order : std::vector<std::vector<int64_t>>{
           {0, 1, 2, 3, 4}, {2, 0, 1, 3, 4}, {4, 3, 2, 1, 0}, {0, 4, 2, 1, 3}}) {
    const std::string message = failure_of({7, 7, 9, 7, 7}, order);
    CHECK(contains(message, "rank 2 computed something else"));
    CHECK(contains(message, "hash 7 on all 5"));
    CHECK(contains(message, "hash 9 on rank 2"));
    CHECK(!contains(message, "differing ranks"));
  }
  // The first of several; without a majority the first rank counts as right.
  CHECK(contains(failure_of({7, 8, 7, 9, 7}, {0, 1, 2, 3, 4}), "differing ranks: 1, 3"));
  CHECK(contains(failure_of({7, 8}, {1, 0}), "rank 1 computed something else"));
  CHECK(failure_of({7, 7, 7}, {2, 1, 0}).empty());
}

TEST_CASE("once: one rank computes, all get its result") {
  Replicas replicas = six(ReplicaMode::kOnce);
  int computed = 0;
  for (int64_t rank = 0; rank < 6; ++rank) {
    for (int call = 0; call < 3; ++call) {
      const int result = replicas.once(rank, 0, [&] {
        ++computed;
        return 10 * call + static_cast<int>(rank);
      });
      CHECK(result == 10 * call);  // rank 0's
    }
  }
  CHECK(computed == 3);
  // By parity: ranks 0 and 1 compute.
  for (int64_t rank = 0; rank < 6; ++rank) {
    CHECK(replicas.once(rank, 1, [&] { return rank; }) == rank % 2);
  }
}

TEST_CASE("once: ranks on threads get the result of one") {
  constexpr int64_t kRanks = 8;
  Replicas replicas(ReplicaMode::kOnce, kRanks, {{"everything", std::vector<int64_t>(kRanks, 0)}});
  std::atomic<int> wrong = 0, computed = 0;
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      for (int call = 0; call < 2000; ++call) {
        const std::string text = replicas.once(rank, 0, [&] {
          ++computed;
          return "result of call " + std::to_string(call);
        });
        if (text != "result of call " + std::to_string(call)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(computed == 2000);
}

TEST_CASE("once: where one fails the next computes") {
  Replicas replicas = six(ReplicaMode::kOnce);
  CHECK_THROWS_AS(replicas.once(0, 0, []() -> int { throw ConfigError({.what = "no"}); }),
                  ConfigError);
  CHECK(replicas.once(1, 0, [] { return 1; }) == 1);
  CHECK(replicas.once(2, 0, [] { return 2; }) == 1);
}

TEST_CASE("modes are read by name") {
  CHECK(parse_replica_mode("every") == ReplicaMode::kEvery);
  CHECK(parse_replica_mode("once") == ReplicaMode::kOnce);
  CHECK(replica_mode_name(ReplicaMode::kOnce) == "once");
  CHECK_THROWS_AS(parse_replica_mode("onec"), ConfigError);
}

}  // namespace
}  // namespace deepinfer
