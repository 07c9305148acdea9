// What collectives do to the buffers of their members, once all have come and agree. No ranks here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "platform/communicator.h"

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

// Calls that surely agree, without making a text: false only sends the caller to `difference`.
inline bool is_same(const Call& a, const Call& b) {
  if (a.op != b.op || a.groups != b.groups || a.sequence != b.sequence) return false;
  switch (a.op) {
    case CollectiveOp::kBarrier:
      return true;
    case CollectiveOp::kAllReduceSum:
    case CollectiveOp::kAllReduceMax:
    case CollectiveOp::kAllGather:
    case CollectiveOp::kReduceScatterSum:
      return a.in.type == b.in.type && a.in.shape == b.in.shape;
    default:
      return &a == &b;  // rarer ones are compared with care
  }
}

// How many parts the work of a collective of `members` has that do not depend on each other:
// elements, or members, or 1.
int64_t extent(const Call& call, size_t members);
// Bytes that a member hands in: what it sends, the root's data, its partials; 0 for a receiver.
int64_t sent_bytes(const Call& call);

// Does what the calls ask for, in the given parts; calls[i] is member i's. All agree.
void perform(std::span<Call* const> calls, IndexRange parts);

}  // namespace deepinfer
