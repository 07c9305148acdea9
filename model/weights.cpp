#include "model/weights.h"

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

TextWeights shard_text_weights(const TextWeights& all, const ModelConfig& config,
                               const ParallelRank& rank) {
  const Mesh& mesh = rank.mesh();
  const int64_t place = rank.index(Axis::kTensor);
  const IndexRange channels = mesh.heads().columns_of_rank(place);
  const IndexRange heads = {channels.begin / config.head_dim, channels.end / config.head_dim};
  const IndexRange shared = mesh.shared().columns_of_rank(place);
  const IndexRange words = mesh.vocabulary().of_rank[static_cast<size_t>(place)];
  const IndexRange experts = mesh.experts().of_rank[static_cast<size_t>(rank.index(Axis::kExpert))];
  const auto own_experts = [&](const ExpertProjections& every) {
    const auto part = [&](const std::vector<at::Tensor>& tensors) {
      return tensors.empty() ? tensors
                             : std::vector<at::Tensor>(tensors.begin() + experts.begin,
                                                       tensors.begin() + experts.end);
    };
    return ExpertProjections{part(every.weights), part(every.scales)};
  };
  TextWeights own = all;
  own.head = all.head.slice(0, words.begin, words.end);
  for (LayerWeights& layer : own.layers) {
    layer.attn.wq_b = layer.attn.wq_b.rows(channels.begin, channels.end);
    layer.attn.sink = layer.attn.sink.slice(0, heads.begin, heads.end);
    layer.ffn.w1 = own_experts(layer.ffn.w1);
    layer.ffn.w2 = own_experts(layer.ffn.w2);
    layer.ffn.w3 = own_experts(layer.ffn.w3);
    layer.ffn.shared_w1 = layer.ffn.shared_w1.rows(shared.begin, shared.end);
    layer.ffn.shared_w3 = layer.ffn.shared_w3.rows(shared.begin, shared.end);
  }
  return own;
}

Projection Projection::rows(int64_t begin, int64_t end) const {
  constexpr int64_t kTile = 32;  // model.md 2.2
  Projection part{weight.slice(0, begin, end), {}};
  if (!quantized()) return part;
  const bool tiles = scale.size(0) != weight.size(0);  // fp4: scales by row
  DEEPINFER_ASSERT(!tiles || (begin % kTile == 0 && (end % kTile == 0 || end == weight.size(0))),
                   "rows " << begin << " to " << end);
  part.scale =
      tiles ? scale.slice(0, begin / kTile, (end + kTile - 1) / kTile) : scale.slice(0, begin, end);
  return part;
}

at::Tensor quantized_input(const at::Tensor& x, const Projection& projection,
                           const Numerics& numerics) {
  return projection.quantized() && numerics.quantize_linear
             ? ops::fake_quantize_aq32(x, numerics.fp8_max)
             : x;
}

at::Tensor project(const at::Tensor& x, const Projection& projection, const Numerics& numerics) {
  return project_quantized(quantized_input(x, projection, numerics), projection);
}

at::Tensor project_quantized(const at::Tensor& input, const Projection& projection) {
  const at::ScalarType out = input.scalar_type();
  if (!projection.quantized()) return ops::linear(input, projection.weight, out);
  const bool two_codes_a_byte = projection.weight.size(1) != input.size(1);
  return two_codes_a_byte ? ops::fp4_linear(input, projection.weight, projection.scale, out)
                          : ops::fp8_linear(input, projection.weight, projection.scale, out);
}

at::Tensor project_partials(const at::Tensor& x, const Projection& projection, int64_t first_column,
                            int64_t first_position, const std::vector<int64_t>& bounds) {
  return ops::linear_partials(
      x, projection.weight,
      projection.quantized() ? ops::OptionalTensor(projection.scale) : ops::OptionalTensor(),
      first_column, first_position, bounds);
}

}  // namespace deepinfer
