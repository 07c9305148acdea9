#include "sim/cluster/rank_communicator.h"

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "platform/errors.h"
#include "sim/cluster/rendezvous.h"

namespace deepinfer::internal {
namespace {

class RankCommunicator final : public Communicator {
 public:
  RankCommunicator(Rendezvous& rendezvous, int64_t rank) : rendezvous_(rendezvous), rank_(rank) {
    std::vector<int64_t> all(static_cast<size_t>(rendezvous.size()));
    std::iota(all.begin(), all.end(), 0);
    world_ = rendezvous_.make_group(rank_, {std::move(all)}, CallSite::here(), GroupKind::kWorld);
  }

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return rendezvous_.size(); }
  GroupPtr world() const override { return world_; }
  GroupPtr group(ReplicaGroups groups, CallSite site) override {
    return rendezvous_.make_group(rank_, std::move(groups), site);
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
    DEEPINFER_ASSERT(map.ranks() == group.size(), "axis " << map.axis() << " of " << map.ranks()
                                                          << " ranks, group of " << group.size());
    const auto given = static_cast<int64_t>(partials.size());
    const auto subtrees = static_cast<int64_t>(map.subtrees_of_rank(position).size());
    const int64_t blocks = given / subtrees;
    DEEPINFER_ASSERT(blocks > 0 && given % subtrees == 0 && out.shape.elements() % blocks == 0,
                     "axis " << map.axis() << ": " << given << " partials of " << subtrees
                             << " subtrees, " << out.shape.elements() << " elements");
    require_reducible(out.type, CollectiveOp::kAllReduceTree, site);
    Call& call = begin_call(CollectiveOp::kAllReduceTree, {}, out, site);
    call.map = &map;
    call.partials = partials;
    call.blocks = blocks;
    rendezvous_.meet(rank_, own(group));
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
    rendezvous_.meet(rank_, own(group));
  }
  void broadcast(const Buffer& data, int64_t root, const Group& group, CallSite site) override {
    if (root < 0 || root >= group.size()) {
      fail_call("a root that is not in the group", CollectiveOp::kBroadcast, site,
                "0 to " + std::to_string(group.size() - 1), std::to_string(root));
    }
    Call& call = begin_call(CollectiveOp::kBroadcast, {}, data, site);
    call.root = root;
    call.is_root = own(group).position() == root;
    rendezvous_.meet(rank_, own(group));
  }
  void barrier(const Group& group, CallSite site) override {
    // No buffers: what they hold of an earlier call is not looked at.
    Call& call = rendezvous_.next_call(rank_);
    call.op = CollectiveOp::kBarrier;
    call.site = site;
    rendezvous_.meet(rank_, own(group));
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
        known.rank() == rank_ && known.side().rendezvous == &rendezvous_,
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
    return rendezvous_.make_group(rank_, {{from, to}}, site, GroupKind::kPair);
  }

  Call& begin_call(CollectiveOp op, const ConstBuffer& in, const Buffer& out,
                   const CallSite& site) const {
    Call& call = rendezvous_.next_call(rank_);
    call.op = op;
    call.in = in;
    call.out = out;
    call.root = 0;
    call.map = nullptr;
    call.blocks = 1;
    call.site = site;
    return call;
  }

  void meet(const Group& group, CollectiveOp op, const ConstBuffer& in, const Buffer& out,
            const CallSite& site) {
    begin_call(op, in, out, site);
    rendezvous_.meet(rank_, own(group));
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

  Rendezvous& rendezvous_;
  const int64_t rank_;
  GroupPtr world_;
};

}  // namespace

std::unique_ptr<Communicator> make_rank_communicator(Rendezvous& rendezvous, int64_t rank) {
  return std::make_unique<RankCommunicator>(rendezvous, rank);
}

}  // namespace deepinfer::internal
