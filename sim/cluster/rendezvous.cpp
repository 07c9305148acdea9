#include "sim/cluster/rendezvous.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

namespace deepinfer::internal {

// Work on the calls of a meeting: none of its members' buffers goes while it lasts. Empty if the
// run is over. What it throws ends the run.
class Rendezvous::Work {
 public:
  explicit Work(Rendezvous& rendezvous) : rendezvous_(rendezvous) {
    rendezvous_.completing_.fetch_add(1);
    may_go_on_ = !rendezvous_.aborted_.load();
  }
  ~Work() { rendezvous_.completing_.fetch_sub(1); }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  bool may_go_on() const { return may_go_on_; }

 private:
  Rendezvous& rendezvous_;
  bool may_go_on_;
};

void Side::Release::run() { side->rendezvous->release_side(*side); }
void Side::Help::run() { side->rendezvous->help(*side->meeting, side->ranks.front()); }

void Rendezvous::run(const std::function<void(int64_t rank)>& task, TaskLocals* locals) {
  const auto guarded = [&](int64_t rank) {
    try {
      task(rank);
    } catch (const Unwound&) {
    } catch (...) {
      abort(rank, std::current_exception());
    }
    states_[static_cast<size_t>(rank)].ended = true;
  };
  executor_->run(
      guarded, [this] { stuck(); }, locals);
}

ClusterStatistics Rendezvous::statistics() const {
  ClusterStatistics statistics;
  for (const auto& [members, meeting] : meetings_) {
    statistics.collectives += meeting->completed;
    statistics.bytes += meeting->bytes;
    statistics.shared += meeting->shared;
  }
  return statistics;
}

GroupPtr Rendezvous::make_group(int64_t rank, ReplicaGroups groups, const CallSite& site,
                                GroupKind kind) {
  const auto fail = [&](const std::string& what, const std::string& expected) {
    throw CollectiveError({.what = what,
                           .where = "group at " + site.text(),
                           .expected = expected,
                           .found = replica_groups_text(groups)});
  };
  std::set<int64_t> seen;
  size_t own = groups.size();
  int64_t position = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t i = 0; i < groups[g].size(); ++i) {
      const int64_t member = groups[g][i];
      if (member < 0 || member >= size()) {
        fail("replica groups name rank " + std::to_string(member) + ", which does not exist",
             "ranks 0 to " + std::to_string(size() - 1));
      }
      if (!seen.insert(member).second) {
        fail(
            "replica groups overlap: rank " + std::to_string(member) + " is in more than one place",
            "every rank once");
      }
      if (member == rank) own = g, position = static_cast<int64_t>(i);
    }
  }
  if (own == groups.size()) {
    fail("replica groups (" + replica_groups_text(groups) + ") does not have myself " +
             std::to_string(rank),
         "a group with the caller");
  }
  if (topology_ != nullptr && kind == GroupKind::kReplica) {
    require_accepted(*topology_, groups, "group at " + site.text());
  }
  const std::scoped_lock lock(mutex_);
  const ReplicaGroups& list = *lists_.insert(std::move(groups)).first;
  std::unique_ptr<Meeting>& meeting = meetings_[list[own]];
  if (!meeting) {
    meeting = std::make_unique<Meeting>();
    meeting->members = list[own];
    meeting->calls.resize(list[own].size());
    std::map<int64_t, size_t> of_worker;
    for (const int64_t member : list[own]) {
      const int64_t worker = executor_->worker_of(member);
      meeting->side_of.push_back(of_worker.try_emplace(worker, of_worker.size()).first->second);
    }
    meeting->sides = std::vector<Side>(of_worker.size());
    for (const auto& [worker, number] : of_worker) {
      Side& side = meeting->sides[number];
      side.meeting = meeting.get();
      side.rendezvous = this;
      side.worker = worker;
      side.release.side = side.help.side = &side;
    }
    for (size_t place = 0; place < list[own].size(); ++place) {
      Side& side = meeting->sides[meeting->side_of[place]];
      side.ranks.push_back(list[own][place]);
      side.places.push_back(static_cast<int64_t>(place));
    }
    for (const Side& side : meeting->sides) {
      const int64_t extent = side.places.back() - side.places.front() + 1;
      if (extent > static_cast<int64_t>(side.places.size())) meeting->in_order = false;
    }
  }
  return std::make_shared<MeetingGroup>(list, position, *meeting);
}

// Counts the caller in; true for the last of its side. Calls are compared here, where a rank has
// its own at hand, and not by the last, who would fetch them all.
inline bool Rendezvous::is_last_of(Side& side, const Call& call) {
  if (side.arrived == 0) {
    side.first = &call;
    side.agree = true;
  }
  side.agree = side.agree && is_same(*side.first, call);
  return ++side.arrived == side.ranks.size();
}

inline void Rendezvous::wait(int64_t rank, RankState& state, const Side& side, int64_t sequence) {
  state.meeting = side.meeting;
  while (side.finished.load(std::memory_order_acquire) == sequence) {
    if (aborted_.load()) {
      // A member that is at work on this call has to be done before the rank's buffers go.
      while (completing_.load() != 0) std::this_thread::yield();
      throw Unwound();
    }
    executor_->park(rank);
  }
  state.meeting = nullptr;
}

void Rendezvous::meet(int64_t rank, const MeetingGroup& group) {
  if (aborted_.load(std::memory_order_relaxed)) throw Unwound();
  RankState& state = states_[static_cast<size_t>(rank)];
  Call& call = state.current();
  Meeting& meeting = group.meeting();
  Side& side = group.side();
  call.groups = &group.groups();
  // The call before is over, or the caller would not be here: all of a side find the same number.
  const int64_t sequence = side.finished.load(std::memory_order_relaxed);
  call.sequence = sequence;
  meeting.calls[static_cast<size_t>(group.position())] = &call;
  if (is_last_of(side, call)) side_arrived(rank, side);
  wait(rank, state, side, sequence);
  ++state.made;
}

// By the last of a side: its members wait on this worker, so that none goes with its buffers.
void Rendezvous::side_arrived(int64_t rank, Side& side) {
  Meeting& meeting = *side.meeting;
  side.arrived = 0;
  if (side.agree && is_by_sides(meeting, side.first->op)) {
    try {
      side.partial.reduce(meeting.calls, {side.places.front(), side.places.back() + 1});
    } catch (...) {
      return abort(kWholeRun, std::current_exception());
    }
  }
  if (meeting.sides_arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == meeting.sides.size()) {
    meeting.sides_arrived.store(0, std::memory_order_relaxed);
    complete(rank, meeting);
  }
}

bool Rendezvous::agree(const Meeting& meeting) {
  const Call& first = *meeting.sides.front().first;
  return std::all_of(meeting.sides.begin(), meeting.sides.end(),
                     [&](const Side& side) { return side.agree && is_same(first, *side.first); });
}

// Not if a rank is a worker of its own (a thread): there is nothing to reduce alone.
bool Rendezvous::is_by_sides(const Meeting& meeting, CollectiveOp op) const {
  return is_all_reduce(op) && meeting.in_order && meeting.sides.size() > 1 &&
         executor_->workers() < size();
}

// Below some size, handing work over costs more than it saves. A rank that is a worker of its own
// (a thread) has no loop that could help.
bool Rendezvous::is_shared(const Meeting& meeting) const {
  constexpr int64_t kSharedBytes = 256 << 10;
  const Call& first = *meeting.calls[0];
  const auto members = static_cast<int64_t>(meeting.calls.size());
  return first.op == CollectiveOp::kAllGather && meeting.sides.size() > 1 &&
         executor_->workers() < size() && members >= Meeting::kSlices &&
         !have_one_output(meeting.calls) && first.out.bytes() * members >= kSharedBytes;
}

void Rendezvous::finish_by_sides(Meeting& meeting) {
  const Call& call = *meeting.calls[0];
  if (have_one_output(meeting.calls)) {
    meeting.finished = call.out.data;
  } else {
    meeting.result.resize(static_cast<size_t>(call.out.bytes()));
    meeting.finished = meeting.result.data();
  }
  for (int64_t block = 0; block < call.blocks; ++block) {
    std::vector<const float*> leaves(call.map != nullptr ? static_cast<size_t>(call.map->leaves())
                                                         : meeting.calls.size());
    for (const Side& side : meeting.sides) side.partial.put(block, leaves);
    finish(call, block, leaves, meeting.finished);
  }
}

// All have come: by the last of them, who waits like the others if the work is shared, or if it
// fails.
void Rendezvous::complete(int64_t rank, Meeting& meeting) {
  bool shared = false;
  try {
    const Work work(*this);
    if (!work.may_go_on()) return;
    const bool same = agree(meeting);
    if (!same) {
      if (const auto error = disagreement(meeting)) std::rethrow_exception(error);
    }
    const CollectiveOp op = meeting.calls[0]->op;
    ++meeting.completed;
    if (op != CollectiveOp::kBarrier) {  // for which no call is worth a look
      for (const Call* call : meeting.calls) meeting.bytes += sent_bytes(*call);
    }
    meeting.by_sides = same && is_by_sides(meeting, op);
    shared = is_shared(meeting);
    if (meeting.by_sides) {
      finish_by_sides(meeting);
      ++meeting.shared;
    } else if (shared) {
      meeting.slices_done.store(0, std::memory_order_relaxed);
      meeting.next_slice.store(0, std::memory_order_release);
      ++meeting.shared;
    } else {
      perform(meeting.calls);
    }
  } catch (...) {
    return abort(kWholeRun, std::current_exception());
  }
  if (!shared) return release(meeting, rank);
  for (Side& side : meeting.sides) {
    if (side.worker != executor_->worker_of(rank)) executor_->post(side.worker, side.help);
  }
  help(meeting, rank);
}

void Rendezvous::help(Meeting& meeting, int64_t rank) {
  bool last = false;
  try {
    const Work work(*this);
    int64_t slice = meeting.next_slice.load(std::memory_order_acquire);
    while (work.may_go_on() && !last && !aborted_.load() && slice < Meeting::kSlices) {
      if (!meeting.next_slice.compare_exchange_weak(slice, slice + 1, std::memory_order_acq_rel)) {
        continue;
      }
      const auto members = static_cast<int64_t>(meeting.calls.size());
      gather(meeting.calls,
             {slice * members / Meeting::kSlices, (slice + 1) * members / Meeting::kSlices});
      last = meeting.slices_done.fetch_add(1, std::memory_order_acq_rel) + 1 == Meeting::kSlices;
      slice = meeting.next_slice.load(std::memory_order_acquire);
    }
  } catch (...) {
    return abort(kWholeRun, std::current_exception());
  }
  if (last) release(meeting, rank);
}

// Wakes all members: `rank` is any of the caller's worker.
void Rendezvous::release(Meeting& meeting, int64_t rank) {
  Side* own = nullptr;
  for (Side& side : meeting.sides) {
    if (side.worker == executor_->worker_of(rank)) {
      own = &side;
    } else {
      executor_->post(side.worker, side.release);
    }
  }
  // Its own last: with a thread for each rank, members go on at once.
  if (own != nullptr) release_side(*own);
}

void Rendezvous::release_side(Side& side) {
  if (side.meeting->by_sides) {
    // When the run ends, members go, and their buffers with them: nobody is left to give to.
    if (aborted_.load()) return;
    give(side.meeting->calls, {side.places.front(), side.places.back() + 1},
         side.meeting->finished);
  }
  side.finished.fetch_add(1, std::memory_order_release);
  executor_->unpark(side.ranks);
}

std::exception_ptr Rendezvous::disagreement(const Meeting& meeting) const {
  for (size_t i = 1; i < meeting.calls.size(); ++i) {
    // all_to_all_v compares pairs; of the others any two agree if each agrees with the first.
    const size_t others = meeting.calls[i]->op == CollectiveOp::kAllToAllV ? i : 1;
    for (size_t j = 0; j < others; ++j) {
      const Call &a = *meeting.calls[j], &b = *meeting.calls[i];
      const std::string what = difference(a, static_cast<int64_t>(j), b, static_cast<int64_t>(i));
      if (what.empty()) continue;
      const bool lists = what == "list of replica groups";
      return std::make_exception_ptr(CollectiveError(
          {.what = lists ? "replica group signature mismatch ... likely caused by mismatched "
                           "collectives between peers"
                         : "ranks disagree in a collective: " + what,
           .where = "group " + replica_groups_text({meeting.members}),
           .expected =
               "rank " + std::to_string(meeting.members[j]) + ": " + call_text(record_of(a)),
           .found = "rank " + std::to_string(meeting.members[i]) + ": " + call_text(record_of(b)),
           .remedy = "make every rank of the group run the same collectives in the same order"}));
    }
  }
  return nullptr;
}

void Rendezvous::abort(int64_t rank, std::exception_ptr error) {
  {
    const std::scoped_lock lock(mutex_);
    if (!failure_.error) failure_ = {rank, std::move(error)};
  }
  aborted_.store(true);
  wake_all();
}

void Rendezvous::wake_all() {
  std::vector<int64_t> all(states_.size());
  std::iota(all.begin(), all.end(), 0);
  executor_->unpark(all);
}

void Rendezvous::stuck() {
  if (aborted_.load()) return wake_all();
  const bool any_left =
      std::any_of(states_.begin(), states_.end(), [](const RankState& s) { return !s.ended; });
  if (any_left) abort(kWholeRun, std::make_exception_ptr(stuck_error()));
}

}  // namespace deepinfer::internal
