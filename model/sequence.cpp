#include "model/sequence.h"

#include <utility>

#include "model/transformer.h"

namespace deepinfer {

void Sequence::allocate(const ModelConfig& config, const ModelPlan& plan, const ParallelRank& rank,
                        at::TensorOptions options) {
  for (const LayerPlan& layer : plan.layers) {
    window.push_back(at::empty({0, config.head_dim}, options));
    if (!layer.owns_kv) continue;
    const int64_t capacity = rank.tiles().rows_before(max_tokens_ / layer.ratio);
    CompressedCache cache;
    std::tie(cache.rows, cache.index_keys) = rank.update(Axis::kContext, [&] {
      return std::pair(at::zeros({capacity, config.head_dim}, options),
                       at::zeros({capacity, config.index_head_dim}, options));
    });
    caches.emplace(layer.layer, std::move(cache));
  }
}

void SequenceDeleter::operator()(Sequence* sequence) const { delete sequence; }

}  // namespace deepinfer
