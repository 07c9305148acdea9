#include "model/sequence.h"

#include "model/transformer.h"

namespace deepinfer {

Sequence::Sequence(const ModelConfig& config, const ModelPlan& plan, int64_t max_tokens,
                   at::ScalarType activation, at::Device device)
    : max_tokens_(max_tokens) {
  const auto options = at::TensorOptions().dtype(activation).device(device);
  for (const LayerPlan& layer : plan.layers) {
    window.push_back(at::empty({0, config.head_dim}, options));
    if (!layer.owns_kv) continue;
    const int64_t capacity = max_tokens / layer.ratio;
    CompressedCache cache;
    cache.rows = at::zeros({capacity, config.head_dim}, options);
    cache.index_keys = at::zeros({capacity, config.index_head_dim}, options);
    caches.emplace(layer.layer, std::move(cache));
  }
}

void SequenceDeleter::operator()(Sequence* sequence) const { delete sequence; }

}  // namespace deepinfer
