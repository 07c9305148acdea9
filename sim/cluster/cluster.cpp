#include "sim/cluster/cluster.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

#include "platform/errors.h"
#include "sim/cluster/collectives.h"

namespace deepinfer {
namespace {

// Thrown through a rank's program when the run ends early. Not a std::exception: programs that
// catch those do not stop it.
struct Unwound {};

constexpr int64_t kWholeRun = -1;  // in place of a rank: a failure of no single one

enum class GroupKind {
  kReplica,
  kWorld,  // what every rank is born into: used or not, so no topology is asked
  kPair,   // the two ends of send and receive: not a replica group to the runtime
};

class Cluster;
struct Meeting;

// The members of a meeting that live on one worker. They arrive and are woken by that worker alone,
// without atomics; the last of them speaks for all.
struct alignas(64) Side {
  Meeting* meeting = nullptr;
  Cluster* cluster = nullptr;
  int64_t worker = 0;
  std::vector<size_t> places;  // in the meeting
  std::vector<int64_t> ranks;  // of the same members
  size_t arrived = 0;
  bool agree = true;  // their calls, as far as one worker sees

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
  std::vector<int64_t> members;   // ranks, in group order
  std::vector<Call*> calls;       // [members] of those who have come
  std::vector<int64_t> sequence;  // [members] of the next call; each its own rank's
  std::vector<Side> sides;
  std::vector<size_t> side_of;  // [members]
  alignas(64) std::atomic<size_t> sides_arrived = 0;

  // Work of a large collective, cut into slices that workers take one by one: round << 8 | next
  // slice, and how many of the round are done.
  static constexpr int64_t kSlices = 8;
  alignas(64) std::atomic<uint64_t> next_slice = kSlices;
  std::atomic<int64_t> slices_done = 0;

  // Written by the last to come.
  int64_t completed = 0;
  int64_t shared = 0;  // of those, by several workers
  int64_t bytes = 0;
};

class MeetingGroup final : public Group {
 public:
  MeetingGroup(const ReplicaGroups& groups, int64_t position, Meeting& meeting)
      : groups_(groups), position_(position), meeting_(meeting) {}
  const ReplicaGroups& groups() const override { return groups_; }
  const std::vector<int64_t>& members() const override { return meeting_.members; }
  int64_t position() const { return position_; }
  int64_t rank() const { return meeting_.members[static_cast<size_t>(position_)]; }
  Meeting& meeting() const { return meeting_; }

 private:
  const ReplicaGroups& groups_;  // the cluster's
  int64_t position_;
  Meeting& meeting_;
};

// What is known of a rank from outside.
struct alignas(64) RankState {
  int64_t made = 0;                  // calls begun
  const Meeting* meeting = nullptr;  // where it waits; null if it does not
  bool ended = false;
  // The call that it is in or makes next, and the one before it: what it finished last. Calls live
  // here and not on the rank's stack, so that neither has to be copied.
  Call calls[2];

  Call& current() { return calls[made % 2]; }
  const Call& current() const { return calls[made % 2]; }
  const Call* finished() const { return made == 0 ? nullptr : &calls[(made - 1) % 2]; }
};

std::string ranks_text(const std::vector<int64_t>& ranks) {
  std::ostringstream text;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    text << (i > 0 ? ", " : "") << ranks[i];
    if (end - i > 1) text << '-' << ranks[end - 1];
    i = end;
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text.str();
}

class Cluster {
 public:
  Cluster(const ClusterOptions& options)
      : topology_(options.topology),
        executor_(Executor::make(options.executor, options.ranks)),
        states_(static_cast<size_t>(options.ranks)) {}

  int64_t size() const { return static_cast<int64_t>(states_.size()); }

  ClusterStatistics run(const std::function<void(RankContext&)>& program, TaskLocals* locals);

  GroupPtr make_group(int64_t rank, ReplicaGroups groups, const CallSite& site,
                      GroupKind kind = GroupKind::kReplica);

  // The call to fill in before `meet`.
  Call& next_call(int64_t rank) { return states_[static_cast<size_t>(rank)].current(); }

  // Waits until every member has made its call and it is done.
  void meet(int64_t rank, const MeetingGroup& group) {
    throw_if_aborted();
    RankState& state = states_[static_cast<size_t>(rank)];
    Call& call = state.current();
    Meeting& meeting = group.meeting();
    const auto position = static_cast<size_t>(group.position());
    call.groups = &group.groups();
    call.sequence = meeting.sequence[position]++;
    call.done.store(false, std::memory_order_relaxed);
    meeting.calls[position] = &call;
    if (is_last(meeting, position)) complete(rank, meeting);
    wait(rank, state, meeting, call);
    ++state.made;
  }

  // By the worker of a side: its members' calls are done.
  void release_side(Side& side) {
    for (const size_t place : side.places) {
      side.meeting->calls[place]->done.store(true, std::memory_order_release);
    }
    executor_->unpark(side.ranks);
  }

  // Takes slices of the meeting's work as long as there are any; who finishes the last releases
  // all. Called too late it finds none, or helps with the next round. `rank` is any of the caller's
  // worker.
  void help(Meeting& meeting, int64_t rank) {
    bool last = false;
    try {
      const Work work(*this);
      uint64_t next = meeting.next_slice.load(std::memory_order_acquire);
      while (work.may_go_on() && !last && !aborted_.load() &&
             static_cast<int64_t>(next & 0xFF) < Meeting::kSlices) {
        if (!meeting.next_slice.compare_exchange_weak(next, next + 1, std::memory_order_acq_rel)) {
          continue;
        }
        const int64_t whole = extent(*meeting.calls[0], meeting.calls.size());
        const auto slice = static_cast<int64_t>(next & 0xFF);
        perform(meeting.calls,
                {slice * whole / Meeting::kSlices, (slice + 1) * whole / Meeting::kSlices});
        last = meeting.slices_done.fetch_add(1, std::memory_order_acq_rel) + 1 == Meeting::kSlices;
        next = meeting.next_slice.load(std::memory_order_acquire);
      }
    } catch (...) {
      return abort(kWholeRun, std::current_exception());
    }
    if (last) release(meeting, rank);
  }

 private:
  // Wakes all members: `rank` is any of the caller's worker.
  void release(Meeting& meeting, int64_t rank) {
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

  static bool agree(const Meeting& meeting) {
    const Call& first = *meeting.calls[meeting.sides.front().places.front()];
    return std::all_of(meeting.sides.begin(), meeting.sides.end(), [&](const Side& side) {
      return side.agree && is_same(first, *meeting.calls[side.places.front()]);
    });
  }

  struct Failure {
    int64_t rank = kWholeRun;
    std::exception_ptr error;
  };

  void throw_if_aborted() const {
    if (aborted_.load(std::memory_order_relaxed)) throw Unwound();
  }

  // Counts the caller in; true for the last of all.
  static bool is_last(Meeting& meeting, size_t position) {
    Side& side = meeting.sides[meeting.side_of[position]];
    if (++side.arrived < side.ranks.size()) return false;
    side.arrived = 0;
    const Call& first = *meeting.calls[side.places.front()];
    side.agree = std::all_of(side.places.begin(), side.places.end(),
                             [&](size_t place) { return is_same(first, *meeting.calls[place]); });
    if (meeting.sides_arrived.fetch_add(1, std::memory_order_acq_rel) + 1 < meeting.sides.size()) {
      return false;
    }
    meeting.sides_arrived.store(0, std::memory_order_relaxed);
    return true;
  }

  void wait(int64_t rank, RankState& state, const Meeting& meeting, const Call& call) {
    state.meeting = &meeting;
    while (!call.done.load(std::memory_order_acquire)) {
      if (aborted_.load()) {
        // A member that is at work on this call has to be done before the rank's buffers go.
        while (completing_.load() != 0) std::this_thread::yield();
        if (!call.done.load()) throw Unwound();
        break;
      }
      executor_->park(rank);
    }
    state.meeting = nullptr;
  }

  // Work on the calls of a meeting: none of its members' buffers goes while it lasts. Empty if the
  // run is over. What it throws ends the run.
  class Work {
   public:
    explicit Work(Cluster& cluster) : cluster_(cluster) {
      cluster_.completing_.fetch_add(1);
      may_go_on_ = !cluster_.aborted_.load();
    }
    ~Work() { cluster_.completing_.fetch_sub(1); }
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

    bool may_go_on() const { return may_go_on_; }

   private:
    Cluster& cluster_;
    bool may_go_on_;
  };

  // All have come: by the last of them, who waits like the others if the work is shared, or if it
  // fails.
  void complete(int64_t rank, Meeting& meeting) {
    bool shared = false;
    try {
      const Work work(*this);
      if (!work.may_go_on()) return;
      if (!agree(meeting)) {
        if (const auto error = disagreement(meeting)) std::rethrow_exception(error);
      }
      ++meeting.completed;
      for (const Call* call : meeting.calls) meeting.bytes += sent_bytes(*call);
      shared = is_shared(meeting);
      if (shared) {
        meeting.slices_done.store(0, std::memory_order_relaxed);
        const uint64_t round = (meeting.next_slice.load(std::memory_order_relaxed) >> 8) + 1;
        meeting.next_slice.store(round << 8, std::memory_order_release);
        ++meeting.shared;
      } else {
        perform(meeting.calls, {0, extent(*meeting.calls[0], meeting.calls.size())});
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

  // Below some size, handing work over costs more than it saves. A rank that is a worker of its own
  // (a thread) has no loop that could help.
  bool is_shared(const Meeting& meeting) const {
    constexpr int64_t kSharedBytes = 256 << 10;
    const Call& first = *meeting.calls[0];
    const auto members = static_cast<int64_t>(meeting.calls.size());
    return meeting.sides.size() > 1 && executor_->workers() < size() &&
           extent(first, meeting.calls.size()) >= Meeting::kSlices &&
           std::max(first.in.bytes(), first.out.bytes()) * members >= kSharedBytes;
  }

  std::exception_ptr disagreement(const Meeting& meeting) const;
  void abort(int64_t rank, std::exception_ptr error);
  void wake_all();
  void stuck();
  CollectiveError stuck_error() const;
  [[noreturn]] static void rethrow(const Failure& failure);

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

// A rank's end.
class RankCommunicator final : public Communicator {
 public:
  RankCommunicator(Cluster& cluster, int64_t rank) : cluster_(cluster), rank_(rank) {
    std::vector<int64_t> all(static_cast<size_t>(cluster.size()));
    std::iota(all.begin(), all.end(), 0);
    world_ = cluster_.make_group(rank_, {std::move(all)}, CallSite::here(), GroupKind::kWorld);
  }

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return cluster_.size(); }
  GroupPtr world() const override { return world_; }
  GroupPtr group(ReplicaGroups groups, CallSite site) override {
    return cluster_.make_group(rank_, std::move(groups), site);
  }

  void all_reduce_sum(const ConstBuffer& in, const Buffer& out, const Group& group,
                      CallSite site) override {
    require_same_shape(in, out, CollectiveOp::kAllReduceSum, site);
    require_reducible(in.type, CollectiveOp::kAllReduceSum, site);
    meet(group, CollectiveOp::kAllReduceSum, in, out, site);
  }
  void all_reduce_max(const ConstBuffer& in, const Buffer& out, const Group& group,
                      CallSite site) override {
    require_same_shape(in, out, CollectiveOp::kAllReduceMax, site);
    require_reducible(in.type, CollectiveOp::kAllReduceMax, site);
    meet(group, CollectiveOp::kAllReduceMax, in, out, site);
  }
  void all_reduce_tree(const ShardMap& map, std::span<const float* const> partials,
                       const Buffer& out, const Group& group, CallSite site) override {
    const int64_t position = own(group).position();
    DEEPINFER_ASSERT(
        map.ranks() == group.size() && partials.size() == map.subtrees_of_rank(position).size(),
        "axis " << map.axis() << " of " << map.ranks() << " ranks, group of " << group.size()
                << ", " << partials.size() << " partials");
    require_reducible(out.type, CollectiveOp::kAllReduceTree, site);
    Call& call = begin_call(CollectiveOp::kAllReduceTree, {}, out, site);
    call.map = &map;
    call.partials = partials;
    cluster_.meet(rank_, own(group));
  }
  void all_gather(const ConstBuffer& in, const Buffer& out, const Group& group,
                  CallSite site) override {
    require_elements(in, out, in.shape.elements() * group.size(), out.shape.elements(),
                     CollectiveOp::kAllGather, site);
    meet(group, CollectiveOp::kAllGather, in, out, site);
  }
  void reduce_scatter_sum(const ConstBuffer& in, const Buffer& out, const Group& group,
                          CallSite site) override {
    require_elements(in, out, out.shape.elements() * group.size(), in.shape.elements(),
                     CollectiveOp::kReduceScatterSum, site);
    require_reducible(in.type, CollectiveOp::kReduceScatterSum, site);
    meet(group, CollectiveOp::kReduceScatterSum, in, out, site);
  }
  void all_to_all_v(const ConstBuffer& in, std::span<const int64_t> send_counts, const Buffer& out,
                    std::span<const int64_t> receive_counts, const Group& group,
                    CallSite site) override {
    const auto sum = [](std::span<const int64_t> counts) {
      return std::accumulate(counts.begin(), counts.end(), int64_t{0});
    };
    const auto members = static_cast<size_t>(group.size());
    if (send_counts.size() != members || receive_counts.size() != members) {
      fail_call(
          "a count for each member is needed", CollectiveOp::kAllToAllV, site,
          std::to_string(members) + " counts each",
          std::to_string(send_counts.size()) + " and " + std::to_string(receive_counts.size()));
    }
    for (const auto& counts : {send_counts, receive_counts}) {
      for (const int64_t count : counts) {
        if (count >= 0) continue;
        fail_call("a negative count", CollectiveOp::kAllToAllV, site, "0 or more",
                  std::to_string(count));
      }
    }
    const auto self = static_cast<size_t>(own(group).position());
    if (send_counts[self] != receive_counts[self]) {
      fail_call("a member sends itself another number of elements than it receives",
                CollectiveOp::kAllToAllV, site, std::to_string(send_counts[self]),
                std::to_string(receive_counts[self]));
    }
    require_elements(in, out, sum(send_counts), in.shape.elements(), CollectiveOp::kAllToAllV,
                     site);
    require_elements(in, out, sum(receive_counts), out.shape.elements(), CollectiveOp::kAllToAllV,
                     site);
    Call& call = begin_call(CollectiveOp::kAllToAllV, in, out, site);
    call.send_counts = send_counts;
    call.receive_counts = receive_counts;
    cluster_.meet(rank_, own(group));
  }
  void broadcast(const Buffer& data, int64_t root, const Group& group, CallSite site) override {
    if (root < 0 || root >= group.size()) {
      fail_call("a root that is not in the group", CollectiveOp::kBroadcast, site,
                "0 to " + std::to_string(group.size() - 1), std::to_string(root));
    }
    Call& call = begin_call(CollectiveOp::kBroadcast, {}, data, site);
    call.root = root;
    call.is_root = own(group).position() == root;
    cluster_.meet(rank_, own(group));
  }
  void barrier(const Group& group, CallSite site) override {
    // No buffers: what they hold of an earlier call is not looked at.
    Call& call = cluster_.next_call(rank_);
    call.op = CollectiveOp::kBarrier;
    call.site = site;
    cluster_.meet(rank_, own(group));
  }
  void send(const ConstBuffer& data, int64_t to_rank, CallSite site) override {
    const GroupPtr pair = pair_with(rank_, to_rank, CollectiveOp::kSend, site);
    meet(*pair, CollectiveOp::kSend, data, {}, site);
  }
  void receive(const Buffer& data, int64_t from_rank, CallSite site) override {
    const GroupPtr pair = pair_with(from_rank, rank_, CollectiveOp::kReceive, site);
    meet(*pair, CollectiveOp::kReceive, {}, data, site);
  }

 private:
  // Groups are made here only, so every Group is one of these; one of another rank is a bug.
  const MeetingGroup& own(const Group& group) const {
    const auto& known = static_cast<const MeetingGroup&>(group);
    DEEPINFER_ASSERT(
        known.rank() == rank_ && known.meeting().sides.front().cluster == &cluster_,
        "rank " << rank_ << " uses a group of rank " << known.rank() << ", or of another cluster");
    return known;
  }

  GroupPtr pair_with(int64_t from, int64_t to, CollectiveOp op, const CallSite& site) {
    const int64_t peer = from == rank_ ? to : from;
    if (from == to || peer < 0 || peer >= size()) {
      fail_call("a peer that is not another rank", op, site,
                "a rank of 0 to " + std::to_string(size() - 1) + " but " + std::to_string(rank_),
                std::to_string(peer));
    }
    return cluster_.make_group(rank_, {{from, to}}, site, GroupKind::kPair);
  }

  Call& begin_call(CollectiveOp op, const ConstBuffer& in, const Buffer& out,
                   const CallSite& site) const {
    Call& call = cluster_.next_call(rank_);
    call.op = op;
    call.in = in;
    call.out = out;
    call.root = 0;
    call.map = nullptr;
    call.site = site;
    return call;
  }

  void meet(const Group& group, CollectiveOp op, const ConstBuffer& in, const Buffer& out,
            const CallSite& site) {
    begin_call(op, in, out, site);
    cluster_.meet(rank_, own(group));
  }

  [[noreturn]] void fail_call(const std::string& what, CollectiveOp op, const CallSite& site,
                              const std::string& expected, const std::string& found) const {
    throw CollectiveError({.what = what,
                           .where = std::string(collective_name(op)) + " at " + site.text(),
                           .expected = expected,
                           .found = found});
  }
  void require_same_shape(const ConstBuffer& in, const Buffer& out, CollectiveOp op,
                          const CallSite& site) const {
    if (in.type == out.type && in.shape == out.shape) return;
    const auto text = [](WireType type, const Shape& shape) {
      return std::string(wire_type_name(type)) + " " + shape.text();
    };
    fail_call("input and output differ", op, site, text(in.type, in.shape),
              text(out.type, out.shape));
  }
  void require_elements(const ConstBuffer& in, const Buffer& out, int64_t expected, int64_t found,
                        CollectiveOp op, const CallSite& site) const {
    if (in.type != out.type) {
      fail_call("input and output differ", op, site, std::string(wire_type_name(in.type)),
                std::string(wire_type_name(out.type)));
    }
    if (expected != found) {
      fail_call("a buffer of another size", op, site, std::to_string(expected) + " elements",
                std::to_string(found));
    }
  }
  // trn2.md 3.1: reduction arithmetic is fp32; the compiler refuses integers (EVRF061, EVRF063).
  void require_reducible(WireType type, CollectiveOp op, const CallSite& site) const {
    if (type == WireType::kFloat32 || type == WireType::kBFloat16) return;
    throw UnsupportedError(
        {.what = "the device reduces in fp32 and takes no integers (EVRF061, EVRF063)",
         .where = std::string(collective_name(op)) + " at " + site.text(),
         .expected = "fp32 or bf16",
         .found = std::string(wire_type_name(type)),
         .remedy = "send the values as fp32, which is exact up to 2^24"});
  }

  Cluster& cluster_;
  const int64_t rank_;
  GroupPtr world_;
};

GroupPtr Cluster::make_group(int64_t rank, ReplicaGroups groups, const CallSite& site,
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
    meeting->sequence.resize(list[own].size());
    std::map<int64_t, size_t> of_worker;
    for (const int64_t member : list[own]) {
      const int64_t worker = executor_->worker_of(member);
      meeting->side_of.push_back(of_worker.try_emplace(worker, of_worker.size()).first->second);
    }
    meeting->sides = std::vector<Side>(of_worker.size());
    for (const auto& [worker, number] : of_worker) {
      Side& side = meeting->sides[number];
      side.meeting = meeting.get();
      side.cluster = this;
      side.worker = worker;
      side.release.side = side.help.side = &side;
    }
    for (size_t place = 0; place < list[own].size(); ++place) {
      Side& side = meeting->sides[meeting->side_of[place]];
      side.places.push_back(place);
      side.ranks.push_back(list[own][place]);
    }
  }
  return std::make_shared<MeetingGroup>(list, position, *meeting);
}

std::exception_ptr Cluster::disagreement(const Meeting& meeting) const {
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

void Cluster::abort(int64_t rank, std::exception_ptr error) {
  {
    const std::scoped_lock lock(mutex_);
    if (!failure_.error) failure_ = {rank, std::move(error)};
  }
  aborted_.store(true);
  wake_all();
}

void Cluster::wake_all() {
  std::vector<int64_t> all(states_.size());
  std::iota(all.begin(), all.end(), 0);
  executor_->unpark(all);
}

void Cluster::stuck() {
  if (aborted_.load()) return wake_all();
  const bool any_left =
      std::any_of(states_.begin(), states_.end(), [](const RankState& s) { return !s.ended; });
  if (any_left) abort(kWholeRun, std::make_exception_ptr(stuck_error()));
}

CollectiveError Cluster::stuck_error() const {
  // Ranks of one state and text stand in one line.
  std::map<std::string, std::vector<int64_t>> lines;
  std::set<std::pair<const Meeting*, int64_t>> waited_for;
  std::vector<int64_t> waiting;
  for (size_t i = 0; i < states_.size(); ++i) {
    const RankState& state = states_[i];
    const auto rank = static_cast<int64_t>(i);
    const Call* finished = state.finished();
    const std::string last = finished != nullptr
                                 ? "last finished " + call_text(record_of(*finished))
                                 : std::string("has finished no collective");
    if (state.ended) {
      lines["ended; " + last].push_back(rank);
      continue;
    }
    waiting.push_back(rank);
    lines["waits in " + call_text(record_of(state.current())) + "; " + last].push_back(rank);
    waited_for.insert({state.meeting, state.current().sequence});
  }
  std::ostringstream found;
  for (const auto& [text, ranks] : lines) found << "\n    " << ranks_text(ranks) << ": " << text;
  for (const auto& [meeting, sequence] : waited_for) {
    std::vector<int64_t> missing;
    const Call* call = nullptr;
    for (size_t i = 0; i < meeting->members.size(); ++i) {
      const RankState& member = states_[static_cast<size_t>(meeting->members[i])];
      const bool came =
          !member.ended && member.meeting == meeting && member.current().sequence == sequence;
      if (came) {
        call = &member.current();
      } else {
        missing.push_back(meeting->members[i]);
      }
    }
    found << "\n    " << ranks_text(missing) << " never came to " << call_text(record_of(*call));
    // The same ranks in other groups: a list that differs, not a call that is missing.
    for (const int64_t rank : missing) {
      const RankState& other = states_[static_cast<size_t>(rank)];
      if (other.ended || other.current().op != call->op ||
          *other.current().groups == *call->groups) {
        continue;
      }
      found << "\n    replica group signature mismatch ... likely caused by mismatched collectives "
               "between peers: rank "
            << rank << " names " << replica_groups_text(*other.current().groups) << " at "
            << other.current().site.text();
      break;
    }
  }
  const CallRecord first = record_of(states_[static_cast<size_t>(waiting.front())].current());
  std::ostringstream what;
  what << "missing collectives status on " << ranks_text(waiting)
       << " - suspected hang in collectives operation " << first.sequence << ": no rank can go on, "
       << waiting.size() << " of " << states_.size() << " wait";
  return CollectiveError({.what = what.str(),
                          .where = call_text(first),
                          .found = found.str(),
                          .remedy =
                              "make every rank of a group run the same collectives: no branch "
                              "around one may depend on what a single rank knows"});
}

void Cluster::rethrow(const Failure& failure) {
  if (failure.rank < 0) std::rethrow_exception(failure.error);
  const std::string rank = "rank " + std::to_string(failure.rank);
  try {
    std::rethrow_exception(failure.error);
  } catch (const Error& error) {
    ErrorParts parts = error.parts();
    parts.where = parts.where.empty() ? rank : rank + ", " + parts.where;
    throw RankError(error.exit_code(), std::move(parts), failure.rank, failure.error);
  } catch (const std::exception& error) {
    std::throw_with_nested(std::runtime_error(rank + ": " + error.what()));
  }
}

ClusterStatistics Cluster::run(const std::function<void(RankContext&)>& program,
                               TaskLocals* locals) {
  const auto task = [&](int64_t rank) {
    try {
      RankCommunicator communicator(*this, rank);
      RankContext context{rank, communicator};
      program(context);
    } catch (const Unwound&) {
    } catch (...) {
      abort(rank, std::current_exception());
    }
    states_[static_cast<size_t>(rank)].ended = true;
  };
  executor_->run(
      task, [this] { stuck(); }, locals);
  if (failure_.error) rethrow(failure_);
  ClusterStatistics statistics;
  for (const auto& [members, meeting] : meetings_) {
    statistics.collectives += meeting->completed;
    statistics.bytes += meeting->bytes;
    statistics.shared += meeting->shared;
  }
  return statistics;
}

void Side::Release::run() { side->cluster->release_side(*side); }
void Side::Help::run() { side->cluster->help(*side->meeting, side->ranks.front()); }

}  // namespace

ClusterStatistics run_cluster(const ClusterOptions& options,
                              const std::function<void(RankContext& context)>& program,
                              TaskLocals* locals) {
  if (options.ranks < 1) {
    throw ConfigError({.what = "a cluster without ranks",
                       .where = "ClusterOptions::ranks",
                       .expected = "at least 1",
                       .found = std::to_string(options.ranks)});
  }
  if (options.topology != nullptr && options.topology->ranks() != options.ranks) {
    throw ConfigError({.what = "another number of ranks than the topology has",
                       .where = "ClusterOptions::ranks",
                       .expected = std::to_string(options.topology->ranks()) + " (" +
                                   options.topology->name + ")",
                       .found = std::to_string(options.ranks)});
  }
  return Cluster(options).run(program, locals);
}

}  // namespace deepinfer
