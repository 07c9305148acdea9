#include "model/weights.h"

#include <algorithm>
#include <cstring>

#include "platform/errors.h"
#include "platform/ops.h"

namespace deepinfer {

namespace {

at::ScalarType tensor_type(StoredType type) {
  switch (type) {
    case StoredType::kBF16:
      return at::kBFloat16;
    case StoredType::kF32:
      return at::kFloat;
    case StoredType::kU8:
    case StoredType::kI8:
    case StoredType::kF8E4M3:
    case StoredType::kF8E8M0:
      return at::kByte;  // codes travel as bytes (systems.md N3)
    default:
      DEEPINFER_ASSERT(false, "no weight has type " << stored_type_name(type));
      return at::kByte;
  }
}

// Makes tensors over a store's bytes.
class Loader {
 public:
  Loader(std::shared_ptr<const TensorStore> store, const ModelConfig& config, at::Device device)
      : store_(std::move(store)), config_(config), device_(device) {}

  at::Tensor tensor(const std::string& name) const {
    const TensorStore::Located located = store_->find(name);
    DEEPINFER_ASSERT(located, "validated checkpoint lacks " << name);
    const std::span<const std::byte> bytes = located.bytes();
    const at::ScalarType type = tensor_type(located.info->type);
    const auto options = at::TensorOptions().dtype(type);
    const auto address = reinterpret_cast<uintptr_t>(bytes.data());
    if (address % c10::elementSize(type) != 0) {
      // The format does not align payloads; a misaligned element must not be read in place.
      at::Tensor copy = at::empty(located.info->shape, options);
      if (!bytes.empty()) std::memcpy(copy.data_ptr(), bytes.data(), bytes.size());
      return copy.to(device_);
    }
    // from_blob wants a mutable pointer; the mapping is read-only and nothing writes weights.
    void* data = const_cast<std::byte*>(bytes.data());
    return at::from_blob(
               data, located.info->shape, [store = store_](void*) {}, options)
        .to(device_);
  }

  Projection projection(const std::string& name) const {
    Projection projection{tensor(name + ".weight"), {}};
    if (store_->find(name + ".scale")) projection.scale = tensor(name + ".scale");
    return projection;
  }

  ExpertProjections experts(const std::string& prefix, const char* name) const {
    ExpertProjections projections;
    for (int64_t expert = 0; expert < config_.n_routed_experts; ++expert) {
      Projection one = projection(prefix + std::to_string(expert) + "." + name);
      projections.weights.push_back(one.weight);
      if (one.quantized()) projections.scales.push_back(one.scale);
    }
    return projections;
  }

  HyperConnectionWeights hyper_connection(const std::string& prefix) const {
    return {tensor(prefix + "_fn"), tensor(prefix + "_base"), tensor(prefix + "_scale")};
  }

  AttentionWeights attention(const std::string& prefix, const LayerPlan& plan) const {
    AttentionWeights weights;
    weights.wq_a = projection(prefix + "wq_a");
    weights.q_norm = tensor(prefix + "q_norm.weight");
    weights.wq_b = projection(prefix + "wq_b");
    weights.wkv = projection(prefix + "wkv");
    weights.kv_norm = tensor(prefix + "kv_norm.weight");
    weights.sink = tensor(prefix + "attn_sink");
    weights.wo_a = projection(prefix + "wo_a");
    weights.wo_b = projection(prefix + "wo_b");
    if (plan.owns_kv) {
      CompressorWeights compressor;
      compressor.wkv = tensor(prefix + "compressor.wkv.weight");
      if (plan.ratio > 1) compressor.wgate = tensor(prefix + "compressor.wgate.weight");
      compressor.norm = tensor(prefix + "compressor.norm.weight");
      compressor.index_wk = tensor(prefix + "indexer.wk.weight");
      compressor.index_k_norm = tensor(prefix + "indexer.k_norm.weight");
      weights.compressor = compressor;
    }
    if (plan.owns_index) {
      weights.indexer = IndexerWeights{projection(prefix + "indexer.wq_b"),
                                       tensor(prefix + "indexer.weights_proj.weight")};
    }
    return weights;
  }

  MoeWeights moe(const std::string& prefix) const {
    MoeWeights weights;
    weights.gate = tensor(prefix + "gate.weight");
    weights.bias = tensor(prefix + "gate.bias");
    weights.bias_vl = tensor(prefix + "gate.bias_vl");
    weights.w1 = experts(prefix + "experts.", "w1");
    weights.w2 = experts(prefix + "experts.", "w2");
    weights.w3 = experts(prefix + "experts.", "w3");
    weights.shared_w1 = projection(prefix + "shared_experts.w1");
    weights.shared_w2 = projection(prefix + "shared_experts.w2");
    weights.shared_w3 = projection(prefix + "shared_experts.w3");
    return weights;
  }

  EngramWeights engram(const std::string& prefix, const EngramLayerMeta& meta) const {
    EngramWeights weights;
    weights.codes = tensor(prefix + "embed.weight");
    weights.scales = tensor(prefix + "embed.scale");
    weights.wkv = projection(prefix + "wkv");
    weights.q_weight = tensor(prefix + "q_weight");
    weights.k_weight = tensor(prefix + "k_weight");
    weights.multipliers = at::tensor(meta.multipliers, at::kLong).to(device_);
    weights.primes = at::tensor(meta.primes, at::kLong).to(device_);
    weights.offsets = at::tensor(meta.offsets, at::kLong).to(device_);
    return weights;
  }

 private:
  std::shared_ptr<const TensorStore> store_;
  const ModelConfig& config_;
  at::Device device_;
};

// x, quantised where the projection and the numerics ask for it.
at::Tensor projection_input(const at::Tensor& x, const Projection& projection,
                            const Numerics& numerics) {
  return projection.quantized() && numerics.quantize_linear
             ? ops::fake_quantize_aq32(x, numerics.fp8_max)
             : x;
}

}  // namespace

TextWeights load_text_weights(std::shared_ptr<const TensorStore> store, const ModelConfig& config,
                              const ModelPlan& plan, const EngramMeta& engram, at::Device device) {
  const Loader loader(std::move(store), config, device);
  TextWeights weights;
  weights.embed = loader.tensor("embed.weight");
  weights.head = loader.tensor("head.weight");
  weights.norm = loader.tensor("norm.weight");
  for (const LayerPlan& layer : plan.layers) {
    const std::string prefix = "layers." + std::to_string(layer.layer) + ".";
    LayerWeights one;
    one.attn_norm = loader.tensor(prefix + "attn_norm.weight");
    one.ffn_norm = loader.tensor(prefix + "ffn_norm.weight");
    one.hc_attn = loader.hyper_connection(prefix + "hc_attn");
    one.hc_ffn = loader.hyper_connection(prefix + "hc_ffn");
    one.attn = loader.attention(prefix + "attn.", layer);
    one.ffn = loader.moe(prefix + "ffn.");
    if (layer.engram_slot >= 0) {
      one.engram = loader.engram(prefix + "engram.", engram.layers[layer.engram_slot]);
    }
    weights.layers.push_back(std::move(one));
  }
  return weights;
}

at::Tensor project(const at::Tensor& x, const Projection& projection, const Numerics& numerics) {
  const at::ScalarType out = x.scalar_type();
  if (!projection.quantized()) return ops::linear(x, projection.weight, out);
  const at::Tensor input = projection_input(x, projection, numerics);
  const bool two_codes_a_byte = projection.weight.size(1) != x.size(1);
  return two_codes_a_byte ? ops::fp4_linear(input, projection.weight, projection.scale, out)
                          : ops::fp8_linear(input, projection.weight, projection.scale, out);
}

std::vector<int64_t> column_bounds(const ShardMap& map, IndexRange units, int64_t unit_columns,
                                   int64_t columns) {
  std::vector<int64_t> bounds;
  int64_t unit = units.begin;
  for (int64_t position = 0; position <= map.leaves(); ++position) {
    while (unit < units.end && map.leaf_of_unit(unit) < position) ++unit;
    bounds.push_back(std::min((unit - units.begin) * unit_columns, columns));
  }
  return bounds;
}

at::Tensor project_row_parallel(const at::Tensor& x, const Projection& projection,
                                const Numerics& numerics, const ShardMap& map,
                                int64_t unit_columns) {
  const ops::OptionalTensor scale =
      projection.quantized() ? ops::OptionalTensor(projection.scale) : ops::OptionalTensor();
  return ops::linear_partials(projection_input(x, projection, numerics), projection.weight, scale,
                              0, 0, column_bounds(map, {0, map.units()}, unit_columns, x.size(1)))
      .select(0, 0)
      .to(x.scalar_type());
}

}  // namespace deepinfer
