// What several ranks compute alike: compared among them, or computed by one of them for all.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "platform/errors.h"

namespace deepinfer {

enum class ReplicaMode {
  kEvery,  // every rank computes, as on the device; results are compared by hash
  kOnce,   // the first rank to arrive computes, the others take its result
};
// "every" or "once"; parse throws ConfigError that names the nearest.
std::string_view replica_mode_name(ReplicaMode mode);
ReplicaMode parse_replica_mode(std::string_view name);

// One way of cutting the ranks of a world into sets of replicas: ranks of one set make the same
// calls with the same results.
struct ReplicaPartition {
  std::string name;                  // for messages: "the same heads"
  std::vector<int64_t> set_of_rank;  // [ranks], numbers from 0 on
};

// Shared by all ranks of a run, in the memory of the host.
//
// Every rank makes the same sequence of calls as its replicas, for each partition by itself; a
// call's number in that sequence is what results are matched by.
// Thread rule: calls may be concurrent, those of one rank may not.
class Replicas {
 public:
  Replicas(ReplicaMode mode, int64_t ranks, std::vector<ReplicaPartition> partitions);

  ReplicaMode mode() const { return mode_; }
  // Replicas of `rank` in a partition, itself among them.
  int64_t members(int64_t rank, size_t partition) const;
  // Whether `rank` is the lowest of its replicas.
  bool is_first(int64_t rank, size_t partition) const;

  // Notes what `rank` computed in its next call. The last replica to come throws CollectiveError if
  // not all hashes are equal; it names the first rank that differs from most (from the first rank,
  // if there is no majority). `what` must outlive the run.
  void compare(int64_t rank, size_t partition, const char* what, uint64_t hash);

  // Whether comparisons, with the hashes they need, are timed; and what they took so far in all.
  void time_comparisons() { timed_ = true; }
  bool timed() const { return timed_; }
  void add_comparing(std::chrono::nanoseconds time) { comparing_ns_ += time.count(); }
  double comparing_seconds() const { return static_cast<double>(comparing_ns_.load()) * 1e-9; }

  // The result of `compute` of the first rank that came to this call; others wait for it (without
  // letting other ranks of their thread run, so `compute` must not wait for any). Results are
  // shared: a rank may not write into them (a collective may, that all of the ranks take part in).
  // What `compute` throws goes to the caller, and the next rank computes.
  template <class Compute>
  auto once(int64_t rank, size_t partition, const Compute& compute) {
    using Result = std::invoke_result_t<const Compute&>;
    Taken taken = take(rank, partition);
    if (taken.result == nullptr) {
      Computing computing(*this, taken);
      taken.result = std::make_shared<const Result>(compute());
      computing.done();
    }
    return *static_cast<const Result*>(taken.result.get());
  }

 private:
  struct Comparison {
    const char* what = nullptr;
    uint64_t hash = 0;  // of the first to come
    int64_t rank = 0;
    int64_t arrived = 0;
    std::vector<std::pair<int64_t, uint64_t>> others;  // that came with another hash
  };
  struct Shared {
    std::shared_ptr<const void> result;
    bool computing = false;
    int64_t taken = 0;
  };
  // Calls of one set that not all of its members have made, oldest first.
  template <class Item>
  struct Pending {
    int64_t first = 0;  // number of items[0]
    std::deque<Item> items;

    Item& at(int64_t number) {
      const auto index = static_cast<size_t>(number - first);
      if (index >= items.size()) items.resize(index + 1);
      return items[index];
    }
    template <class IsDone>
    void drop(const IsDone& is_done) {
      for (; !items.empty() && is_done(items.front()); ++first) items.pop_front();
    }
  };
  struct Set {
    std::mutex mutex;
    std::condition_variable computed;  // of mutex: some result is there, or will not be
    std::vector<int64_t> ranks;        // ascending
    Pending<Comparison> comparisons;
    Pending<Shared> shared;
  };
  struct alignas(64) Counters {
    std::vector<int64_t> compared, shared;  // [partitions] calls made
  };

  // A rank's turn at a shared call; without a result the rank has to compute.
  struct Taken {
    Set* set = nullptr;
    int64_t number = 0;
    std::shared_ptr<const void> result;
  };
  class Computing {
   public:
    Computing(Replicas& replicas, Taken& taken) : replicas_(replicas), taken_(taken) {}
    ~Computing() {
      if (!done_) replicas_.give_up(taken_);
    }
    Computing(const Computing&) = delete;
    Computing& operator=(const Computing&) = delete;
    void done() {
      replicas_.keep(taken_);
      done_ = true;
    }

   private:
    Replicas& replicas_;
    Taken& taken_;
    bool done_ = false;
  };

  Set& set_of(int64_t rank, size_t partition) const;
  Taken take(int64_t rank, size_t partition);
  void keep(const Taken& taken);
  void give_up(const Taken& taken);
  [[noreturn]] void fail(const Comparison& comparison, size_t partition, const Set& set) const;

  const ReplicaMode mode_;
  const std::vector<ReplicaPartition> partitions_;
  std::vector<std::vector<std::unique_ptr<Set>>> sets_;  // [partitions][sets]
  std::vector<Counters> counters_;                       // [ranks]
  bool timed_ = false;                                   // set before the run
  std::atomic<int64_t> comparing_ns_ = 0;
};

}  // namespace deepinfer
