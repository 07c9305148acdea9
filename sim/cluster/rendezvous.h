// Brings the calls of ranks together, compares them, has them done, and ends the run when it must.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "platform/errors.h"
#include "sim/cluster/cluster.h"
#include "sim/cluster/meeting.h"

namespace deepinfer::internal {

// What a run failed with first.
struct Failure {
  int64_t rank = kWholeRun;
  std::exception_ptr error;
};

// Thread rule: everything but the constructor, run and its results is called by ranks, on any
// worker.
class Rendezvous {
 public:
  explicit Rendezvous(const ClusterOptions& options)
      : topology_(options.topology),
        executor_(Executor::make(options.executor, options.ranks)),
        states_(static_cast<size_t>(options.ranks)) {}

  int64_t size() const { return static_cast<int64_t>(states_.size()); }

  // Runs task(rank) for every rank until all have ended; what a task throws ends the run.
  void run(const std::function<void(int64_t rank)>& task, TaskLocals* locals);
  const Failure& failure() const { return failure_; }
  ClusterStatistics statistics() const;

  // Throws CollectiveError: see Communicator::group.
  GroupPtr make_group(int64_t rank, ReplicaGroups groups, const CallSite& site,
                      GroupKind kind = GroupKind::kReplica);

  // The call to fill in before `meet`.
  Call& next_call(int64_t rank) { return states_[static_cast<size_t>(rank)].current(); }
  // Waits until every member has made its call and it is done. Throws Unwound if the run ends.
  void meet(int64_t rank, const MeetingGroup& group);

  // By the worker of a side: its members' calls are done.
  void release_side(Side& side);
  // Takes slices of the meeting's work as long as there are any; who finishes the last releases
  // all. Called too late it finds none, or helps with the next round. `rank` is any of the caller's
  // worker.
  void help(Meeting& meeting, int64_t rank);

 private:
  class Work;

  static inline bool is_last_of(Side& side, const Call& call);
  void side_arrived(int64_t rank, Side& side);
  static bool agree(const Meeting& meeting);
  bool is_by_sides(const Meeting& meeting, CollectiveOp op) const;
  bool is_shared(const Meeting& meeting) const;
  static void finish_by_sides(Meeting& meeting);
  void complete(int64_t rank, Meeting& meeting);
  inline void wait(int64_t rank, RankState& state, const Side& side, int64_t sequence);
  void release(Meeting& meeting, int64_t rank);
  std::exception_ptr disagreement(const Meeting& meeting) const;
  void abort(int64_t rank, std::exception_ptr error);
  void wake_all();
  void stuck();
  CollectiveError stuck_error() const;  // stuck_report.cpp

  const Topology* const topology_;
  const std::unique_ptr<Executor> executor_;
  std::vector<RankState> states_;
  std::mutex mutex_;                                                   // of the members below
  std::map<std::vector<int64_t>, std::unique_ptr<Meeting>> meetings_;  // by members in order
  std::set<ReplicaGroups> lists_;                                      // every list that was named
  Failure failure_;
  std::atomic<bool> aborted_ = false;
  std::atomic<int64_t> completing_ = 0;  // members that are at work on a call of all
};

}  // namespace deepinfer::internal
