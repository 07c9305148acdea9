#include "model/parallel_rank.h"

#include <chrono>
#include <utility>

#include "platform/errors.h"
#include "platform/hash.h"

namespace deepinfer {
namespace {

WireType wire_type(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return WireType::kFloat32;
    case at::kBFloat16:
      return WireType::kBFloat16;
    case at::kInt:
      return WireType::kInt32;
    default:
      DEEPINFER_ASSERT(x.scalar_type() == at::kByte, "dtype " << x.scalar_type());
      return WireType::kUint8;
  }
}

// The memory of a contiguous tensor.
Buffer buffer(const at::Tensor& x) {
  DEEPINFER_ASSERT(x.is_contiguous(), "sizes " << x.sizes() << ", strides " << x.strides());
  return {wire_type(x), Shape(std::span(x.sizes().data(), x.sizes().size())), x.data_ptr()};
}

int64_t own_rank(const Communicator& communicator, const Mesh& mesh) {
  DEEPINFER_ASSERT(communicator.size() == mesh.ranks(),
                   communicator.size() << " ranks for a mesh of " << mesh.ranks());
  return communicator.rank();
}

}  // namespace

ParallelRank::ParallelRank(std::shared_ptr<const Mesh> mesh, at::Device device)
    : mesh_(std::move(mesh)), tiles_(mesh_->tiles(), 0, device) {
  DEEPINFER_ASSERT(mesh_->ranks() == 1, mesh_->ranks() << " ranks without a communicator");
}

ParallelRank::ParallelRank(std::shared_ptr<const Mesh> mesh, at::Device device,
                           Communicator& communicator, Replicas& replicas)
    : mesh_(std::move(mesh)),
      rank_(own_rank(communicator, *mesh_)),
      tiles_(mesh_->tiles(), mesh_->index(rank_, Axis::kContext), device),
      communicator_(&communicator),
      replicas_(&replicas) {
  for (const Axis axis : {Axis::kTensor, Axis::kContext, Axis::kExpert}) {
    const auto a = static_cast<size_t>(axis);
    index_[a] = mesh_->index(rank_, axis);
    if (size(axis) > 1) groups_[a] = communicator.group(mesh_->groups(axis));
  }
}

bool ParallelRank::counts() const {
  if (depth_ == 0 || replicas_ == nullptr || shares_) return true;
  return replicas_->is_first(rank_, region_.number());
}

ParallelRank::ForwardScope::ForwardScope(const ParallelRank& rank, bool observed)
    : rank_(rank),
      ops_(rank.replicas_ != nullptr && rank.replicas_->mode() == ReplicaMode::kEvery
               ? const_cast<ParallelRank*>(&rank)
               : nullptr) {
  if (rank.replicas_ == nullptr) return;
  rank.shares_ = rank.replicas_->mode() == ReplicaMode::kOnce && !observed;
}
ParallelRank::ForwardScope::~ForwardScope() {
  if (rank_.replicas_ != nullptr) rank_.shares_ = false;
}

// Outside of regions the results are the rank's own.
void ParallelRank::computed(const char* op, int index, const at::Tensor& output) {
  if (depth_ == 0 || replicas_->members(rank_, region_.number()) == 1) return;
  const auto start = replicas_->timed() ? std::chrono::steady_clock::now()
                                        : std::chrono::steady_clock::time_point();
  const at::Tensor bytes = output.cpu().contiguous();
  uint64_t hash = static_cast<uint64_t>(index);
  for (const int64_t size : bytes.sizes()) hash = hash * 31 + static_cast<uint64_t>(size);
  replicas_->compare(rank_, region_.number(), op,
                     hash_bytes(bytes.data_ptr(), bytes.nbytes(), hash));
  if (replicas_->timed()) replicas_->add_comparing(std::chrono::steady_clock::now() - start);
}

at::Tensor ParallelRank::result_of(Axis axis, at::IntArrayRef shape, at::ScalarType type) const {
  const auto make = [&] {
    return at::empty(shape, at::TensorOptions().dtype(type).device(tiles_.device()));
  };
  return shares_ ? replicas_->once(rank_, Mesh::group_partition(axis), make) : make();
}

at::Tensor ParallelRank::all_reduce_blocks(Axis axis, const ShardMap& map,
                                           const at::Tensor& partials, int64_t blocks,
                                           IndexRange own, at::IntArrayRef shape,
                                           CallSite site) const {
  if (size(axis) == 1) return partials.select(0, 0);
  const std::vector<Subtree> subtrees = map.subtrees_of_rank(index(axis));
  const at::Tensor out = result_of(axis, shape, at::kFloat);
  std::vector<const float*> present(subtrees.size() * static_cast<size_t>(blocks), nullptr);
  at::Tensor sums;
  if (partials.defined()) {
    const int64_t block = out.numel() / blocks;
    DEEPINFER_ASSERT(partials.size(0) == static_cast<int64_t>(subtrees.size()) &&
                         own.end <= blocks &&
                         partials.numel() == partials.size(0) * own.count() * block,
                     partials.sizes() << " of " << subtrees.size() << " subtrees, " << own.count()
                                      << " of " << blocks << " blocks of " << shape);
    sums = partials.contiguous();
    const float* next = sums.data_ptr<float>();
    for (size_t s = 0; s < subtrees.size(); ++s) {
      const bool empty = map.is_empty(subtrees[s]);
      for (int64_t b = own.begin; b < own.end; ++b, next += block) {
        if (!empty) present[s * static_cast<size_t>(blocks) + static_cast<size_t>(b)] = next;
      }
    }
  }
  communicator_->all_reduce_tree(map, present, buffer(out), group(axis), site);
  return out;
}

at::Tensor ParallelRank::all_reduce_max(Axis axis, const at::Tensor& x, CallSite site) const {
  if (size(axis) == 1) return x;
  const at::Tensor in = x.contiguous(), out = result_of(axis, in.sizes(), in.scalar_type());
  communicator_->all_reduce_max(buffer(in), buffer(out), group(axis), site);
  return out;
}

at::Tensor ParallelRank::all_gather(Axis axis, const at::Tensor& x, CallSite site) const {
  if (size(axis) == 1) return x.unsqueeze(0);
  const at::Tensor in = x.contiguous();
  std::vector<int64_t> shape = in.sizes().vec();
  shape.insert(shape.begin(), size(axis));
  const at::Tensor out = result_of(axis, shape, in.scalar_type());
  communicator_->all_gather(buffer(in), buffer(out), group(axis), site);
  return out;
}

at::Tensor ParallelRank::all_to_all(Axis axis, const at::Tensor& x,
                                    std::span<const int64_t> send_counts,
                                    std::span<const int64_t> receive_counts, CallSite site) const {
  if (size(axis) == 1) return x;
  int64_t received = 0;
  for (const int64_t count : receive_counts) received += count;
  const at::Tensor in = x.contiguous(), out = at::empty({received}, in.options());
  communicator_->all_to_all_v(buffer(in), send_counts, buffer(out), receive_counts, group(axis),
                              site);
  return out;
}

at::Tensor ParallelRank::broadcast_world(const at::Tensor& x, CallSite site) const {
  if (communicator_ == nullptr) return x;
  const at::Tensor out = x.clone(at::MemoryFormat::Contiguous);
  communicator_->broadcast(buffer(out), 0, *communicator_->world(), site);
  return out;
}

}  // namespace deepinfer
