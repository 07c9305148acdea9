// One rank of a mesh: its places, its collectives on tensors, and what it computes like others.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <ATen/ATen.h>

#include "model/mesh.h"
#include "model/tile_shard.h"
#include "platform/communicator.h"
#include "platform/op_observer.h"
#include "platform/replicas.h"

namespace deepinfer {

// What SPMD model code asks; the code is written once, for any mesh. A collective along an axis of
// size 1 gives its input back: one rank runs the same program.
//
// Invariant: all ranks of the mesh are made with the same mesh and the same Replicas.
// Thread rule: used by its rank alone; rank 0 of 1 has no state, so its calls may be concurrent.
class ParallelRank final : private OpObserver {
 public:
  // Rank 0 of 1, without a communicator.
  ParallelRank(std::shared_ptr<const Mesh> mesh, at::Device device);
  // communicator.size() = mesh->ranks() (asserted). Both are kept by reference.
  ParallelRank(std::shared_ptr<const Mesh> mesh, at::Device device, Communicator& communicator,
               Replicas& replicas);

  const Mesh& mesh() const { return *mesh_; }
  int64_t rank() const { return rank_; }
  int64_t size(Axis axis) const { return mesh_->sizes().of(axis); }
  int64_t index(Axis axis) const { return index_[static_cast<size_t>(axis)]; }
  const TileShard& tiles() const { return tiles_; }

  // Runs `compute`, which may call no collective and changes nothing. Ranks with equal places on
  // the axes `varies` compute the same: by the mode of the replicas, each does and the outputs of
  // all ops are compared, or one does for all (its result is shared then: do not write into it).
  // Regions nest; an inner one varies at least as the outer.
  template <class Compute>
  auto region(AxisSet varies, const Compute& compute) const {
    return run(varies, shares_, compute);
  }
  // A region that makes or changes memory which ranks share where one computes for all: it is
  // changed once in every forward of a run, observed or not.
  template <class Compute>
  auto update(AxisSet varies, const Compute& compute) const {
    return run(varies, replicas_ != nullptr && replicas_->mode() == ReplicaMode::kOnce, compute);
  }
  // Whether what happens here is this rank's to count: of ranks that do the same, one counts.
  bool counts() const;

  // Tells of the ops of a forward while it lasts. `observed`: somebody looks into regions of this
  // rank, so that nothing of it may be computed by others.
  class ForwardScope {
   public:
    ForwardScope(const ParallelRank& rank, bool observed);
    ~ForwardScope();
    ForwardScope(const ForwardScope&) = delete;
    ForwardScope& operator=(const ForwardScope&) = delete;

   private:
    const ParallelRank& rank_;
    OpObserverScope ops_;
  };

  // What follows gives all ranks of a group the same. Where one computes for all it is one tensor:
  // do not write into it.

  // Finishes the tree of a sharded axis (Communicator::all_reduce_tree): partials fp32 [S, ...] of
  // the rank's maximal subtrees -> the sum of all, `shape` = [...]. On one rank that is
  // partials[0]. Undefined: the rank has nothing to add; not all ranks may be so.
  at::Tensor all_reduce_tree(Axis axis, const ShardMap& map, const at::Tensor& partials,
                             at::IntArrayRef shape, CallSite site = CallSite::here()) const {
    return all_reduce_blocks(axis, map, partials, 1, {0, 1}, shape, site);
  }
  // The same for each of the `blocks` equal parts of the result, to which not all ranks add: the
  // rank does to blocks `own`, its partials are [S, own.count() / blocks of shape].
  at::Tensor all_reduce_blocks(Axis axis, const ShardMap& map, const at::Tensor& partials,
                               int64_t blocks, IndexRange own, at::IntArrayRef shape,
                               CallSite site = CallSite::here()) const;
  at::Tensor all_reduce_max(Axis axis, const at::Tensor& x, CallSite site = CallSite::here()) const;
  // [size, ...], in the order of places.
  at::Tensor all_gather(Axis axis, const at::Tensor& x, CallSite site = CallSite::here()) const;
  // Element counts to and from each place: x and the result are flat. The result is the rank's own.
  at::Tensor all_to_all(Axis axis, const at::Tensor& x, std::span<const int64_t> send_counts,
                        std::span<const int64_t> receive_counts,
                        CallSite site = CallSite::here()) const;
  // What rank 0 of the world has.
  at::Tensor broadcast_world(const at::Tensor& x, CallSite site = CallSite::here()) const;

 private:
  class RegionScope {
   public:
    RegionScope(const ParallelRank& rank, AxisSet region) : rank_(rank), outer_(rank.region_) {
      rank.region_ = region;
      ++rank.depth_;
    }
    ~RegionScope() {
      rank_.region_ = outer_;
      --rank_.depth_;
    }
    RegionScope(const RegionScope&) = delete;
    RegionScope& operator=(const RegionScope&) = delete;

   private:
    const ParallelRank& rank_;
    const AxisSet outer_;
  };

  template <class Compute>
  auto run(AxisSet varies, bool shared, const Compute& compute) const {
    if (replicas_ == nullptr) return compute();
    const AxisSet inner = region_ | varies;
    const auto enter = [&] {
      const RegionScope scope(*this, inner);
      return compute();
    };
    if (shared && depth_ == 0 && replicas_->members(rank_, inner.number()) > 1) {
      return replicas_->once(rank_, inner.number(), enter);
    }
    return enter();
  }

  void computed(const char* op, int index, const at::Tensor& output) override;
  // Memory for what a collective along an axis gives to all of its group.
  at::Tensor result_of(Axis axis, at::IntArrayRef shape, at::ScalarType type) const;
  const Group& group(Axis axis) const { return *groups_[static_cast<size_t>(axis)]; }

  std::shared_ptr<const Mesh> mesh_;
  int64_t rank_ = 0;
  std::array<int64_t, kAxes> index_ = {};
  TileShard tiles_;
  Communicator* communicator_ = nullptr;
  Replicas* replicas_ = nullptr;
  std::array<GroupPtr, kAxes> groups_;
  mutable AxisSet region_;
  mutable int64_t depth_ = 0;
  mutable bool shares_ = false;
};

}  // namespace deepinfer
