// What a rank calls to exchange data with other ranks: collectives on groups of ranks.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/shard_map.h"

namespace deepinfer {

// Element types that travel. fp8 travels as uint8 (trn2.md 2).
enum class WireType { kFloat32, kBFloat16, kInt32, kUint8 };
std::string_view wire_type_name(WireType type);  // "fp32", "bf16", "int32", "uint8"
int64_t wire_type_bytes(WireType type);

enum class CollectiveOp {
  kAllReduceSum,
  kAllReduceMax,
  kAllReduceTree,  // sum of partials of subtrees
  kAllGather,
  kReduceScatterSum,
  kAllToAllV,
  kBroadcast,
  kBarrier,
  kSend,
  kReceive,
};
std::string_view collective_name(CollectiveOp op);  // "all_reduce(sum)", ...

// Where in the program a collective was called.
struct CallSite {
  const char* file = "";
  int line = 0;
  const char* function = "";

  static constexpr CallSite here(const char* file = __builtin_FILE(), int line = __builtin_LINE(),
                                 const char* function = __builtin_FUNCTION()) {
    return {file, line, function};
  }
  std::string text() const;  // "attention.cpp:97 (attention)"
};

// Sizes of a dense row-major array: at most kMostDimensions, none negative, not
// more than kMostElements in all (asserted).
class Shape {
 public:
  static constexpr size_t kMostDimensions = 6;
  static constexpr int64_t kMostElements = int64_t{1}
                                           << 48;  // so that bytes of 4096 ranks fit int64
  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes)
      : Shape(std::span<const int64_t>(sizes.begin(), sizes.size())) {}
  explicit Shape(std::span<const int64_t> sizes);

  size_t dimensions() const { return dimensions_; }
  int64_t operator[](size_t i) const { return sizes_[i]; }
  int64_t elements() const;
  std::string text() const;  // "[2, 64]"
  bool operator==(const Shape& other) const = default;

 private:
  std::array<int64_t, kMostDimensions> sizes_ = {};
  size_t dimensions_ = 0;
};

struct ConstBuffer {
  WireType type = WireType::kFloat32;
  Shape shape;
  const void* data = nullptr;
  int64_t bytes() const { return shape.elements() * wire_type_bytes(type); }
};
struct Buffer {
  WireType type = WireType::kFloat32;
  Shape shape;
  void* data = nullptr;
  int64_t bytes() const { return shape.elements() * wire_type_bytes(type); }
  operator ConstBuffer() const { return {type, shape, data}; }
};

// A list of replica groups, as a device graph names them: each an ordered list of ranks, without
// overlap. The order within a group is the order in which data is gathered.
using ReplicaGroups = std::vector<std::vector<int64_t>>;
std::string replica_groups_text(const ReplicaGroups& groups);  // "[[0, 1], [2, 3]]"

// The caller's own group in a list of groups; made by Communicator::group, which checks the list,
// and valid as long as its communicator.
class Group {
 public:
  virtual ~Group() = default;
  virtual const ReplicaGroups& groups() const = 0;          // the whole list
  virtual const std::vector<int64_t>& members() const = 0;  // of the caller's group, in order
  int64_t size() const { return static_cast<int64_t>(members().size()); }
};
using GroupPtr = std::shared_ptr<const Group>;

// One rank's end. Sums are fp32 in the fixed tree of CANONICAL.md C2.5 over members in group order
// (neighbours first), rounded once to the wire type: the same bits on every rank, run and schedule.
//
// Every member of the group has to make the same call: op, type, shape, reduction, root, list of
// groups and its order. Arguments are compared when all have come; a
// difference ends the run with a CollectiveError that names both call sites. So does a wait that
// nothing can end. As on the device (trn2.md 3.1), sums and maxima take fp32 and bf16 only; int32
// and uint8 are an UnsupportedError.
//
// Thread rule: one rank's end is used by that rank alone. Buffers stay the caller's; they are read
// and written while the call lasts. `in` and `out` of one call may be one buffer where their shapes
// are equal. All members of an all_reduce or all_gather may name the same `out`, which is not any
// member's `in` then: it is written once.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  virtual GroupPtr world() const = 0;  // [[0, 1, ..., size - 1]]
  // Throws CollectiveError: a rank out of range or in two groups, or no group with the caller (the
  // runtime's "replica groups (..) does not have myself N").
  virtual GroupPtr group(ReplicaGroups groups, CallSite site = CallSite::here()) = 0;

  // out = sum, or maximum, over the members. out.shape = in.shape.
  virtual void all_reduce_sum(const ConstBuffer& in, const Buffer& out, const Group& group,
                              CallSite site = CallSite::here()) = 0;
  virtual void all_reduce_max(const ConstBuffer& in, const Buffer& out, const Group& group,
                              CallSite site = CallSite::here()) = 0;
  // Finishes the tree of a sharded axis: partials[i], fp32 of out.shape, is what the caller's
  // subtree map.subtrees_of_rank(position in group)[i] sums to; null data: no unit of it is
  // anywhere, it is absent. map.ranks() = group.size() (asserted). Without any partial out is +0.
  // With B partials for each subtree, B equal blocks of `out` are sums of their own: partials[i * B
  // + b] is block b of subtree i. Members agree about B.
  virtual void all_reduce_tree(const ShardMap& map, std::span<const float* const> partials,
                               const Buffer& out, const Group& group,
                               CallSite site = CallSite::here()) = 0;
  // out = the members' `in` in group order, one after the other: out has in.elements() * size
  // elements.
  virtual void all_gather(const ConstBuffer& in, const Buffer& out, const Group& group,
                          CallSite site = CallSite::here()) = 0;
  // out = the caller's piece of the sum: in has out.elements() * size elements, piece i goes to
  // member i.
  virtual void reduce_scatter_sum(const ConstBuffer& in, const Buffer& out, const Group& group,
                                  CallSite site = CallSite::here()) = 0;
  // Elements [sum send_counts[..i)) ... of `in` go to member i; out holds what came, member by
  // member, receive_counts[i] elements of each. What i sends to j has to be what j receives from i.
  virtual void all_to_all_v(const ConstBuffer& in, std::span<const int64_t> send_counts,
                            const Buffer& out, std::span<const int64_t> receive_counts,
                            const Group& group, CallSite site = CallSite::here()) = 0;
  // `root` is a position in the group.
  virtual void broadcast(const Buffer& data, int64_t root, const Group& group,
                         CallSite site = CallSite::here()) = 0;
  virtual void barrier(const Group& group, CallSite site = CallSite::here()) = 0;
  virtual void send(const ConstBuffer& data, int64_t to_rank, CallSite site = CallSite::here()) = 0;
  virtual void receive(const Buffer& data, int64_t from_rank, CallSite site = CallSite::here()) = 0;
};

}  // namespace deepinfer
