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

// Members' values as fp32: their own buffers, or widened copies.
class WideInputs {
 public:
  WideInputs(std::span<Call* const> calls, int64_t begin, int64_t count) {
    for (const Call* call : calls) {
      if (call->in.type == WireType::kFloat32) {
        pointers_.push_back(static_cast<const float*>(call->in.data) + begin);
      } else {
        const auto* narrow = static_cast<const uint16_t*>(call->in.data) + begin;
        std::vector<float>& wide = widened_.emplace_back(static_cast<size_t>(count));
        for (size_t i = 0; i < wide.size(); ++i) {
          wide[i] = std::bit_cast<float>(static_cast<uint32_t>(narrow[i]) << 16);
        }
        pointers_.push_back(wide.data());
      }
    }
  }
  std::span<const float* const> pointers() const { return pointers_; }

 private:
  std::vector<const float*> pointers_;
  std::vector<std::vector<float>> widened_;
};

int64_t element_bytes(const Buffer& buffer) { return wire_type_bytes(buffer.type); }

Buffer part_of(const Buffer& buffer, IndexRange parts) {
  return {buffer.type, {parts.count()}, bytes(buffer.data) + parts.begin * element_bytes(buffer)};
}

void sum_to(std::span<const float* const> partials, const Buffer& out) {
  const int64_t count = out.shape.elements();
  combine_leaves(partials, count,
                 out.type == WireType::kFloat32
                     ? fp32_output(static_cast<float*>(out.data), count)
                     : bf16_output(static_cast<uint16_t*>(out.data), count));
}

// Elements `parts` of the first member's result to all others.
void give_all(std::span<Call* const> calls, IndexRange parts) {
  const Buffer from = part_of(calls[0]->out, parts);
  for (size_t i = 1; i < calls.size(); ++i) {
    copy(part_of(calls[i]->out, parts).data, from.data, from.bytes());
  }
}

void all_reduce_sum(std::span<Call* const> calls, IndexRange parts) {
  sum_to(WideInputs(calls, parts.begin, parts.count()).pointers(), part_of(calls[0]->out, parts));
  give_all(calls, parts);
}

void reduce_scatter_sum(std::span<Call* const> calls) {
  const int64_t count = calls[0]->out.shape.elements();
  // All sums before any result: a result may lie in its member's input.
  std::vector<std::vector<char>> results;
  for (size_t i = 0; i < calls.size(); ++i) {
    Buffer result = calls[i]->out;
    result.data = results.emplace_back(static_cast<size_t>(result.bytes())).data();
    result.shape = {count};
    sum_to(WideInputs(calls, static_cast<int64_t>(i) * count, count).pointers(), result);
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    copy(calls[i]->out.data, results[i].data(), calls[i]->out.bytes());
  }
}

void all_reduce_tree(std::span<Call* const> calls, IndexRange parts) {
  const ShardMap& map = *calls[0]->map;
  std::vector<const float*> by_position(static_cast<size_t>(map.leaves()));
  for (size_t member = 0; member < calls.size(); ++member) {
    const auto subtrees = map.subtrees_of_rank(static_cast<int64_t>(member));
    for (size_t i = 0; i < subtrees.size(); ++i) {
      const float* partial = calls[member]->partials[i];
      if (partial == nullptr) continue;
      // A whole subtree stands at its first leaf; the leaves that it covers are absent beside it.
      by_position[static_cast<size_t>(subtrees[i].begin)] = partial + parts.begin;
    }
  }
  sum_to(by_position, part_of(calls[0]->out, parts));
  give_all(calls, parts);
}

// A total order of fp32 in which the larger is the later, -0 before +0; NaN above all.
int32_t order_key(float value) {
  const auto bits = std::bit_cast<int32_t>(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return 0x7FC00000;
  return bits < 0 ? bits ^ 0x7FFFFFFF : bits;
}

void all_reduce_max(std::span<Call* const> calls, IndexRange parts) {
  const WideInputs inputs(calls, parts.begin, parts.count());
  std::vector<int32_t> largest(static_cast<size_t>(parts.count()), INT32_MIN);
  for (const float* values : inputs.pointers()) {
    for (size_t i = 0; i < largest.size(); ++i) {
      largest[i] = std::max(largest[i], order_key(values[i]));
    }
  }
  const Buffer out = part_of(calls[0]->out, parts);
  for (size_t i = 0; i < largest.size(); ++i) {
    const int32_t bits = largest[i] < 0 ? largest[i] ^ 0x7FFFFFFF : largest[i];
    if (out.type == WireType::kFloat32) {
      static_cast<float*>(out.data)[i] = std::bit_cast<float>(bits);
    } else {  // one of the inputs, so exact
      static_cast<uint16_t*>(out.data)[i] =
          static_cast<uint16_t>(static_cast<uint32_t>(bits) >> 16);
    }
  }
  give_all(calls, parts);
}

// Parts are the members that receive.
void all_gather(std::span<Call* const> calls, IndexRange parts) {
  const int64_t piece = calls[0]->in.bytes();
  for (int64_t to = parts.begin; to < parts.end; ++to) {
    char* place = bytes(calls[static_cast<size_t>(to)]->out.data);
    // A member's input may be its own place in its output, where it belongs anyway.
    for (const Call* from : calls) {
      copy(place, from->in.data, piece);
      place += piece;
    }
  }
}

void all_to_all_v(std::span<Call* const> calls) {
  const int64_t element = wire_type_bytes(calls[0]->in.type);
  // All results before any output: an output may be its member's input.
  std::vector<std::vector<char>> results;
  std::vector<int64_t> read(calls.size(), 0);  // elements of each member's `in` already sent
  for (size_t to = 0; to < calls.size(); ++to) {
    std::vector<char>& result = results.emplace_back(static_cast<size_t>(calls[to]->out.bytes()));
    int64_t written = 0;
    for (size_t from = 0; from < calls.size(); ++from) {
      const int64_t count = calls[from]->send_counts[to];
      copy(result.data() + written * element, bytes(calls[from]->in.data) + read[from] * element,
           count * element);
      written += count;
      read[from] += count;
    }
  }
  for (size_t to = 0; to < calls.size(); ++to) {
    copy(calls[to]->out.data, results[to].data(), calls[to]->out.bytes());
  }
}

std::string counts_text(std::span<const int64_t> counts, int64_t i) {
  return std::to_string(counts[static_cast<size_t>(i)]);
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
  const bool pair = (a.op == CollectiveOp::kSend && b.op == CollectiveOp::kReceive) ||
                    (a.op == CollectiveOp::kReceive && b.op == CollectiveOp::kSend);
  if (a.op != b.op && !pair) return "operation";
  if (a.op == b.op && (a.op == CollectiveOp::kSend || a.op == CollectiveOp::kReceive)) {
    return "operation: one has to send and the other to receive";
  }
  if (a.groups != b.groups && *a.groups != *b.groups) return "list of replica groups";
  if (a.op == CollectiveOp::kBarrier) return "";
  if (described(a).type != described(b).type) return "dtype";
  if (a.op == CollectiveOp::kAllToAllV) {
    if (counts_text(a.send_counts, j) != counts_text(b.receive_counts, i)) {
      return "count: member " + std::to_string(i) + " sends " + counts_text(a.send_counts, j) +
             " elements to member " + std::to_string(j) + ", which expects " +
             counts_text(b.receive_counts, i);
    }
    if (counts_text(b.send_counts, i) != counts_text(a.receive_counts, j)) {
      return "count: member " + std::to_string(j) + " sends " + counts_text(b.send_counts, i) +
             " elements to member " + std::to_string(i) + ", which expects " +
             counts_text(a.receive_counts, j);
    }
    return "";
  }
  if (!(described(a).shape == described(b).shape)) return "shape";
  if (a.root != b.root) return "root";
  if (a.map != nullptr &&
      (a.map->leaves() != b.map->leaves() || a.map->is_interleaved() != b.map->is_interleaved() ||
       a.map->axis() != b.map->axis())) {
    return "sharded axis ('" + a.map->axis() + "' and '" + b.map->axis() + "')";
  }
  return "";
}

int64_t extent(const Call& call, size_t members) {
  switch (call.op) {
    case CollectiveOp::kAllReduceSum:
    case CollectiveOp::kAllReduceMax:
      return call.in.shape.elements();
    case CollectiveOp::kAllReduceTree:
      return call.out.shape.elements();
    case CollectiveOp::kAllGather:
      return static_cast<int64_t>(members);
    default:
      return 1;
  }
}

int64_t sent_bytes(const Call& call) {
  switch (call.op) {
    case CollectiveOp::kBarrier:
    case CollectiveOp::kReceive:
      return 0;
    case CollectiveOp::kBroadcast:
      return call.is_root ? call.out.bytes() : 0;
    case CollectiveOp::kAllReduceTree:
      return call.out.bytes() *
             std::count_if(call.partials.begin(), call.partials.end(),
                           [](const float* partial) { return partial != nullptr; });
    default:
      return call.in.bytes();
  }
}

void perform(std::span<Call* const> calls, IndexRange parts) {
  switch (calls[0]->op) {
    case CollectiveOp::kAllReduceSum:
      return all_reduce_sum(calls, parts);
    case CollectiveOp::kAllReduceMax:
      return all_reduce_max(calls, parts);
    case CollectiveOp::kAllReduceTree:
      return all_reduce_tree(calls, parts);
    case CollectiveOp::kAllGather:
      return all_gather(calls, parts);
    case CollectiveOp::kReduceScatterSum:
      return reduce_scatter_sum(calls);
    case CollectiveOp::kAllToAllV:
      return all_to_all_v(calls);
    case CollectiveOp::kBroadcast: {
      const Buffer& root = calls[static_cast<size_t>(calls[0]->root)]->out;
      for (Call* call : calls) copy(call->out.data, root.data, root.bytes());
      return;
    }
    case CollectiveOp::kBarrier:
      return;
    case CollectiveOp::kSend:
    case CollectiveOp::kReceive: {
      const Call& from = *calls[calls[0]->op == CollectiveOp::kSend ? 0 : 1];
      const Call& to = *calls[calls[0]->op == CollectiveOp::kSend ? 1 : 0];
      copy(to.out.data, from.in.data, from.in.bytes());
      return;
    }
  }
}

}  // namespace deepinfer
