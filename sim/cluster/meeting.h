// Where ranks meet: the members of a group, the calls they have made, the work that is shared.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "platform/communicator.h"
#include "sim/cluster/collectives.h"
#include "sim/cluster/executor.h"

namespace deepinfer::internal {

// Thrown through a rank's program when the run ends early. Not a std::exception: programs that
// catch those do not stop it.
struct Unwound {};

inline constexpr int64_t kWholeRun = -1;  // in place of a rank: a failure of no single one

enum class GroupKind {
  kReplica,
  kWorld,  // what every rank is born into: used or not, so no topology is asked
  kPair,   // the two ends of send and receive: not a replica group to the runtime
};

class Rendezvous;
struct Meeting;

// The members of a meeting that live on one worker. They arrive and are woken by that worker alone,
// without atomics; the last of them speaks for all, and reduces what they hand in to an all_reduce.
struct alignas(64) Side {
  // What every member looks at, in one cache line.
  std::atomic<int64_t> finished = 0;  // calls that are over; the number of the next
  size_t arrived = 0;
  const Call* first = nullptr;  // of those who have arrived
  bool agree = true;            // their calls, as far as one worker sees

  Meeting* meeting = nullptr;
  Rendezvous* rendezvous = nullptr;
  int64_t worker = 0;
  std::vector<int64_t> ranks;
  std::vector<int64_t> places;  // of the same, ascending
  PartialResult partial;

  struct Release final : WorkerJob {
    Side* side = nullptr;
    void run() override;
  } release;
  struct Help final : WorkerJob {
    Side* side = nullptr;
    void run() override;
  } help;
};

// Members of one group that come together, call by call.
struct Meeting {
  std::vector<int64_t> members;  // ranks, in group order
  std::vector<Call*> calls;      // [members] of those who have come
  std::vector<Side> sides;
  std::vector<size_t> side_of;  // [members]
  bool in_order = true;         // the members of each side are neighbours
  alignas(64) std::atomic<size_t> sides_arrived = 0;

  // Of an all_reduce that sides work on, each for its own.
  bool by_sides = false;
  std::vector<char> result;
  void* finished = nullptr;  // the result: there, or in the one output of all members

  // Work of a large all_gather, cut into slices that workers take one by one: the next, and how
  // many are done.
  static constexpr int64_t kSlices = 8;
  alignas(64) std::atomic<int64_t> next_slice = kSlices;
  std::atomic<int64_t> slices_done = 0;

  // Written by the last to come.
  int64_t completed = 0;
  int64_t shared = 0;  // of those, by several workers
  int64_t bytes = 0;
};

class MeetingGroup final : public Group {
 public:
  MeetingGroup(const ReplicaGroups& groups, int64_t position, Meeting& meeting)
      : groups_(groups),
        position_(position),
        rank_(meeting.members[static_cast<size_t>(position)]),
        meeting_(meeting),
        side_(meeting.sides[meeting.side_of[static_cast<size_t>(position)]]) {}
  const ReplicaGroups& groups() const override { return groups_; }
  const std::vector<int64_t>& members() const override { return meeting_.members; }
  int64_t position() const { return position_; }
  int64_t rank() const { return rank_; }
  Meeting& meeting() const { return meeting_; }
  Side& side() const { return side_; }

 private:
  const ReplicaGroups& groups_;  // the cluster's
  int64_t position_;
  int64_t rank_;
  Meeting& meeting_;
  Side& side_;  // of the caller's worker
};

// What is known of a rank from outside.
struct alignas(64) RankState {
  uint64_t made = 0;                 // calls begun
  const Meeting* meeting = nullptr;  // where it waits; null if it does not
  bool ended = false;
  // The call that it is in or makes next, and the one before it: what it finished last. Calls live
  // here and not on the rank's stack, so that neither has to be copied.
  Call calls[2];

  Call& current() { return calls[made % 2]; }
  const Call& current() const { return calls[made % 2]; }
  const Call* finished() const { return made == 0 ? nullptr : &calls[(made - 1) % 2]; }
};

}  // namespace deepinfer::internal
