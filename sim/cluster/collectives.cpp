#include "sim/cluster/collectives.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <sstream>

#include "platform/errors.h"
#include "sim/kernels/gemm.h"

namespace deepinfer {
namespace {

bool sends(CollectiveOp op) {
  return op != CollectiveOp::kBarrier && op != CollectiveOp::kReceive &&
         op != CollectiveOp::kAllReduceTree && op != CollectiveOp::kBroadcast;
}

// Type and shape that a call is compared and reported by.
Buffer described(const Call& call) {
  return sends(call.op) ? Buffer{call.in.type, call.in.shape, nullptr}
                        : Buffer{call.out.type, call.out.shape, nullptr};
}

const char* bytes(const void* data) { return static_cast<const char*>(data); }
char* bytes(void* data) { return static_cast<char*>(data); }

void copy(void* to, const void* from, int64_t count) {
  if (count > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(count));
}

// What members hand in to a reduction, as fp32: their own buffers, or widened copies.
class Leaves {
 public:
  // `count` elements from `begin` on of members [members.begin, members.end); the others are
  // absent.
  Leaves(std::span<Call* const> calls, IndexRange members, int64_t begin, int64_t count) {
    values_.resize(calls.size());
    for (int64_t member = members.begin; member < members.end; ++member) {
      const ConstBuffer& in = calls[static_cast<size_t>(member)]->in;
      values_[static_cast<size_t>(member)] = in.type == WireType::kFloat32
                                                 ? static_cast<const float*>(in.data) + begin
                                                 : widened(in, begin, count);
    }
  }

  // A block of what they hand in to an all_reduce.
  Leaves(std::span<Call* const> calls, IndexRange members, int64_t block) {
    const Call& call = *calls[static_cast<size_t>(members.begin)];
    if (call.op == CollectiveOp::kAllReduceTree) {
      take_partials(calls, members, block);
    } else {
      *this = Leaves(calls, members, 0, call.out.shape.elements());
    }
  }

  // In tree order, null if absent.
  std::span<const float* const> values() const { return values_; }

 private:
  void take_partials(std::span<Call* const> calls, IndexRange members, int64_t block) {
    const ShardMap& map = *calls[static_cast<size_t>(members.begin)]->map;
    values_.resize(static_cast<size_t>(map.leaves()));
    for (int64_t member = members.begin; member < members.end; ++member) {
      const auto subtrees = map.subtrees_of_rank(member);
      for (size_t i = 0; i < subtrees.size(); ++i) {
        // A whole subtree stands at its first leaf; the leaves that it covers are absent beside it.
        const Call& call = *calls[static_cast<size_t>(member)];
        values_[static_cast<size_t>(subtrees[i].begin)] =
            call.partials[i * static_cast<size_t>(call.blocks) + static_cast<size_t>(block)];
      }
    }
  }

  const float* widened(const ConstBuffer& in, int64_t begin, int64_t count) {
    const auto* narrow = static_cast<const uint16_t*>(in.data) + begin;
    std::vector<float>& wide = widened_.emplace_back(static_cast<size_t>(count));
    for (size_t i = 0; i < wide.size(); ++i) {
      wide[i] = std::bit_cast<float>(static_cast<uint32_t>(narrow[i]) << 16);
    }
    return wide.data();
  }

  std::vector<const float*> values_;
  std::vector<std::vector<float>> widened_;
};

void sum_to(std::span<const float* const> leaves, const Buffer& out) {
  const int64_t count = out.shape.elements();
  combine_leaves(leaves, count,
                 out.type == WireType::kFloat32
                     ? fp32_output(static_cast<float*>(out.data), count)
                     : bf16_output(static_cast<uint16_t*>(out.data), count));
}

// A total order of fp32 in which the larger is the later, -0 before +0; NaN above all.
int32_t order_key(float value) {
  const auto bits = std::bit_cast<int32_t>(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return 0x7FC00000;
  return bits < 0 ? bits ^ 0x7FFFFFFF : bits;
}

void maximum_to(std::span<const float* const> leaves, const Buffer& out) {
  std::vector<int32_t> largest(static_cast<size_t>(out.shape.elements()), INT32_MIN);
  for (const float* values : leaves) {
    if (values == nullptr) continue;
    for (size_t i = 0; i < largest.size(); ++i) {
      largest[i] = std::max(largest[i], order_key(values[i]));
    }
  }
  for (size_t i = 0; i < largest.size(); ++i) {
    const int32_t bits = largest[i] < 0 ? largest[i] ^ 0x7FFFFFFF : largest[i];
    if (out.type == WireType::kFloat32) {
      static_cast<float*>(out.data)[i] = std::bit_cast<float>(bits);
    } else {  // one of the inputs, so exact
      static_cast<uint16_t*>(out.data)[i] =
          static_cast<uint16_t>(static_cast<uint32_t>(bits) >> 16);
    }
  }
}

void reduce_to(CollectiveOp op, std::span<const float* const> leaves, const Buffer& out) {
  op == CollectiveOp::kAllReduceMax ? maximum_to(leaves, out) : sum_to(leaves, out);
}

IndexRange all_of(std::span<Call* const> calls) { return {0, static_cast<int64_t>(calls.size())}; }

// Block `block` of a call's result, in memory for all of it.
Buffer block_of(const Call& call, int64_t block, void* result) {
  const int64_t count = call.out.shape.elements() / call.blocks;
  return {call.out.type, {count}, bytes(result) + block * count * wire_type_bytes(call.out.type)};
}

void all_reduce(std::span<Call* const> calls) {
  const Call& first = *calls[0];
  for (int64_t block = 0; block < first.blocks; ++block) {
    const Leaves leaves(calls, all_of(calls), block);
    finish(first, block, leaves.values(), first.out.data);
  }
  give(calls, all_of(calls), first.out.data);
}

void reduce_scatter_sum(std::span<Call* const> calls) {
  const int64_t count = calls[0]->out.shape.elements();
  // All sums before any result: a result may lie in its member's input.
  std::vector<std::vector<char>> results;
  for (size_t i = 0; i < calls.size(); ++i) {
    Buffer result = calls[i]->out;
    result.data = results.emplace_back(static_cast<size_t>(result.bytes())).data();
    result.shape = {count};
    sum_to(Leaves(calls, all_of(calls), static_cast<int64_t>(i) * count, count).values(), result);
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    copy(calls[i]->out.data, results[i].data(), calls[i]->out.bytes());
  }
}

void all_to_all_v(std::span<Call* const> calls) {
  const int64_t element = wire_type_bytes(calls[0]->in.type);
  // What a member hands in where its output goes is put aside first.
  std::vector<std::vector<char>> aside;
  std::vector<const char*> next;  // of each member's `in`: what is not sent yet
  for (const Call* call : calls) {
    next.push_back(bytes(call->in.data));
    if (call->in.data != call->out.data) continue;
    next.back() = aside.emplace_back(next.back(), next.back() + call->in.bytes()).data();
  }
  for (size_t to = 0; to < calls.size(); ++to) {
    char* place = bytes(calls[to]->out.data);
    for (size_t from = 0; from < calls.size(); ++from) {
      const int64_t count = calls[from]->send_counts[to] * element;
      copy(place, next[from], count);
      place += count;
      next[from] += count;
    }
  }
}

}  // namespace

CallRecord record_of(const Call& call) {
  const Buffer what = described(call);
  return {call.op, what.type, what.shape, call.site, call.groups, call.sequence};
}

std::string call_text(const CallRecord& call) {
  std::ostringstream text;
  text << collective_name(call.op) << " #" << call.sequence;
  if (call.op != CollectiveOp::kBarrier) {
    text << ' ' << wire_type_name(call.type) << ' ' << call.shape.text();
  }
  text << " in " << replica_groups_text(*call.groups) << " at " << call.site.text();
  return text.str();
}

std::string difference(const Call& a, int64_t i, const Call& b, int64_t j) {
  const bool pair = a.op == CollectiveOp::kSend && b.op == CollectiveOp::kReceive;
  if (a.op != b.op && !pair) return "operation";
  if (a.groups != b.groups && *a.groups != *b.groups) return "list of replica groups";
  if (a.op == CollectiveOp::kBarrier) return "";
  if (described(a).type != described(b).type) return "dtype";
  if (a.op == CollectiveOp::kAllToAllV) {
    const auto at = [](std::span<const int64_t> counts, int64_t member) {
      return counts[static_cast<size_t>(member)];
    };
    const auto text = [](int64_t from, int64_t sent, int64_t to, int64_t expected) {
      return "count: member " + std::to_string(from) + " sends " + std::to_string(sent) +
             " elements to member " + std::to_string(to) + ", which expects " +
             std::to_string(expected);
    };
    const int64_t sent = at(a.send_counts, j), expected = at(b.receive_counts, i);
    if (sent != expected) return text(i, sent, j, expected);
    const int64_t sent_back = at(b.send_counts, i), expected_back = at(a.receive_counts, j);
    if (sent_back != expected_back) return text(j, sent_back, i, expected_back);
    return "";
  }
  if (!(described(a).shape == described(b).shape)) return "shape";
  if (a.root != b.root) return "root";
  if (a.blocks != b.blocks) return "number of blocks";
  if (a.map != nullptr && !is_same_axis(*a.map, *b.map)) {
    return "sharded axis ('" + a.map->axis() + "' and '" + b.map->axis() + "')";
  }
  return "";
}

int64_t sent_bytes(const Call& call) {
  switch (call.op) {
    case CollectiveOp::kBarrier:
    case CollectiveOp::kReceive:
      return 0;
    case CollectiveOp::kBroadcast:
      return call.is_root ? call.out.bytes() : 0;
    case CollectiveOp::kAllReduceTree:
      return call.out.bytes() / call.blocks *
             std::count_if(call.partials.begin(), call.partials.end(),
                           [](const float* partial) { return partial != nullptr; });
    default:
      return call.in.bytes();
  }
}

void perform(std::span<Call* const> calls) {
  switch (calls[0]->op) {
    case CollectiveOp::kAllReduceSum:
    case CollectiveOp::kAllReduceMax:
    case CollectiveOp::kAllReduceTree:
      return all_reduce(calls);
    case CollectiveOp::kAllGather:
      return gather(calls, all_of(calls));
    case CollectiveOp::kReduceScatterSum:
      return reduce_scatter_sum(calls);
    case CollectiveOp::kAllToAllV:
      return all_to_all_v(calls);
    case CollectiveOp::kBroadcast:
      return give(calls, all_of(calls), calls[static_cast<size_t>(calls[0]->root)]->out.data);
    case CollectiveOp::kBarrier:
      return;
    case CollectiveOp::kSend:
    case CollectiveOp::kReceive:  // in a group {from, to}
      return copy(calls[1]->out.data, calls[0]->in.data, calls[0]->in.bytes());
  }
}

bool have_one_output(std::span<Call* const> calls) {
  const void* first = calls.front()->out.data;
  return calls.size() > 1 && first != nullptr &&
         std::all_of(calls.begin() + 1, calls.end(),
                     [&](const Call* call) { return call->out.data == first; });
}

void gather(std::span<Call* const> calls, IndexRange members) {
  const int64_t piece = calls[0]->in.bytes();
  if (have_one_output(calls)) members.end = std::min<int64_t>(members.end, 1);
  for (int64_t to = members.begin; to < members.end; ++to) {
    char* place = bytes(calls[static_cast<size_t>(to)]->out.data);
    // A member's input may be its own place in its output, where it belongs anyway.
    for (const Call* from : calls) {
      copy(place, from->in.data, piece);
      place += piece;
    }
  }
}

bool is_all_reduce(CollectiveOp op) {
  return op == CollectiveOp::kAllReduceSum || op == CollectiveOp::kAllReduceMax ||
         op == CollectiveOp::kAllReduceTree;
}

void PartialResult::reduce(std::span<Call* const> calls, IndexRange members) {
  const Call& call = *calls[static_cast<size_t>(members.begin)];
  const int64_t count = call.out.shape.elements() / call.blocks;
  subtrees_ = maximal_subtrees(call.op == CollectiveOp::kAllReduceTree
                                   ? IndexRange{call.map->positions_of_rank(members.begin).begin,
                                                call.map->positions_of_rank(members.end - 1).end}
                                   : members);
  values_.resize(static_cast<size_t>(call.blocks));
  for (size_t block = 0; block < values_.size(); ++block) {
    const Leaves leaves(calls, members, static_cast<int64_t>(block));
    values_[block].resize(subtrees_.size());
    for (size_t i = 0; i < subtrees_.size(); ++i) {
      const auto below = leaves.values().subspan(static_cast<size_t>(subtrees_[i].begin),
                                                 static_cast<size_t>(subtrees_[i].count));
      const bool any = std::any_of(below.begin(), below.end(), [](auto leaf) { return leaf; });
      std::vector<float>& values = values_[block][i];
      values.resize(any ? static_cast<size_t>(count) : 0);
      if (any) reduce_to(call.op, below, {WireType::kFloat32, {count}, values.data()});
    }
  }
}

void PartialResult::put(int64_t block, std::span<const float*> leaves) const {
  const auto& values = values_[static_cast<size_t>(block)];
  for (size_t i = 0; i < subtrees_.size(); ++i) {
    if (!values[i].empty()) leaves[static_cast<size_t>(subtrees_[i].begin)] = values[i].data();
  }
}

void finish(const Call& call, int64_t block, std::span<const float* const> leaves, void* result) {
  reduce_to(call.op, leaves, block_of(call, block, result));
}

void give(std::span<Call* const> calls, IndexRange members, const void* result) {
  for (int64_t to = members.begin; to < members.end; ++to) {
    const Buffer& out = calls[static_cast<size_t>(to)]->out;
    copy(out.data, result, out.bytes());
  }
}

}  // namespace deepinfer
