// What collectives do to the buffers of their members, once all have come and agree. No ranks here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "platform/communicator.h"
#include "platform/shard_map.h"

namespace deepinfer {

// One member's call.
struct alignas(64) Call {
  // What a barrier needs comes first, in one cache line: with 64 ranks their lines fill a
  // first-level cache.
  CollectiveOp op = CollectiveOp::kBarrier;
  int64_t sequence = 0;                   // of the caller's calls in this group, from 0
  const ReplicaGroups* groups = nullptr;  // the list that the caller named
  CallSite site;

  ConstBuffer in;    // type and shape of `in` are compared between members, where the op has one
  Buffer out;        // likewise
  int64_t root = 0;  // broadcast: its place in the group
  bool is_root = false;                         // broadcast: the caller is it
  const ShardMap* map = nullptr;                // all_reduce(tree)
  std::span<const float* const> partials = {};  // all_reduce(tree)
  int64_t blocks = 1;                           // all_reduce(tree)
  std::span<const int64_t> send_counts = {};    // all_to_all_v
  std::span<const int64_t> receive_counts = {};
};

// What is left of a call when it is over, and what reports say of it.
struct CallRecord {
  CollectiveOp op = CollectiveOp::kBarrier;
  WireType type = WireType::kFloat32;
  Shape shape;
  CallSite site;
  const ReplicaGroups* groups = nullptr;
  int64_t sequence = 0;
};
CallRecord record_of(const Call& call);

// "all_gather #3 bf16 [2, 64] in [[0, 1]] at attention.cpp:97 (attention)"
std::string call_text(const CallRecord& call);

// Empty if calls a and b of members i and j agree, else what differs: "dtype", "shape", ...
std::string difference(const Call& a, int64_t i, const Call& b, int64_t j);

// Whether partials of both maps stand at the same places of one tree.
inline bool is_same_axis(const ShardMap& a, const ShardMap& b) {
  return a.leaves() == b.leaves() && a.is_interleaved() == b.is_interleaved() &&
         a.axis() == b.axis();
}

// Calls that surely agree, without making a text: false only sends the caller to `difference`.
inline bool is_same(const Call& a, const Call& b) {
  if (a.op != b.op || a.groups != b.groups) return false;
  switch (a.op) {
    case CollectiveOp::kBarrier:
      return true;
    case CollectiveOp::kAllReduceSum:
    case CollectiveOp::kAllReduceMax:
    case CollectiveOp::kAllGather:
    case CollectiveOp::kReduceScatterSum:
      return a.in.type == b.in.type && a.in.shape == b.in.shape;
    case CollectiveOp::kAllReduceTree:
      return a.out.type == b.out.type && a.out.shape == b.out.shape && a.blocks == b.blocks &&
             is_same_axis(*a.map, *b.map);
    default:
      return &a == &b;  // rarer ones are compared with care
  }
}

// Bytes that a member hands in: what it sends, the root's data, its partials; 0 for a receiver.
int64_t sent_bytes(const Call& call);

// Does what the calls ask for; calls[i] is member i's. All agree.
void perform(std::span<Call* const> calls);

// Whether all members name the same memory for the result.
bool have_one_output(std::span<Call* const> calls);

// all_gather, for the members that receive: what several workers do at once.
void gather(std::span<Call* const> calls, IndexRange members);

// An all_reduce by several workers: each reduces what its own members hand in, which lies in its
// caches; the partial results of all are finished as one tree; each gives the result to its own.
bool is_all_reduce(CollectiveOp op);

// What neighbours in a group make of the subtrees that they own whole.
class PartialResult {
 public:
  // Only the calls of `members`, which agree, are looked at.
  void reduce(std::span<Call* const> calls, IndexRange members);
  // Puts the values of a block at their place among the leaves of the whole tree.
  void put(int64_t block, std::span<const float*> leaves) const;

 private:
  std::vector<Subtree> subtrees_;
  // [blocks][subtrees]; empty if nothing of one is present
  std::vector<std::vector<std::vector<float>>> values_;
};

// A block of the result of `call` from what stands at the leaves of the tree (null: absent);
// `result` has room for out.shape values of out.type.
void finish(const Call& call, int64_t block, std::span<const float* const> leaves, void* result);
void give(std::span<Call* const> calls, IndexRange members, const void* result);

}  // namespace deepinfer
