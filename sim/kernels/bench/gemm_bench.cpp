#include "sim/kernels/bench/gemm_bench.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <memory>
#include <random>
#include <unordered_map>

#if DEEPINFER_SIM_ONEDNN
#include <omp.h>
#include <oneapi/dnnl/dnnl.hpp>
#endif

#include "platform/formats.h"

namespace deepinfer {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

enum class WeightForm { kBf16, kFp8, kFp4, kFp32 };

std::string_view kernel_name(WeightForm form) {
  switch (form) {
    case WeightForm::kBf16:
      return "gemm_bf16";
    case WeightForm::kFp8:
      return "gemm_fp8";
    case WeightForm::kFp4:
      return "gemm_fp4";
    case WeightForm::kFp32:
      return "gemm_fp32";
  }
  return {};
}

std::string_view form_text(WeightForm form) {
  switch (form) {
    case WeightForm::kBf16:
      return "bf16 x bf16";
    case WeightForm::kFp8:
      return "bf16 x fp8 tiles";
    case WeightForm::kFp4:
      return "bf16 x fp4";
    case WeightForm::kFp32:
      return "fp32 x fp32";
  }
  return {};
}

std::string shape_text(const GemmShape& s, WeightForm form) {
  return "[" + std::to_string(s.m) + ", " + std::to_string(s.k) + "] x [" + std::to_string(s.n) +
         ", " + std::to_string(s.k) + "] " + std::string(form_text(form));
}

// Operands of one shape. Values are of size about 1, codes never NaN: nothing that a kernel would
// treat in a special way. Weights in a narrow form come with the bf16 values that they stand for,
// which are exact (C2.4).
struct Operands {
  GemmShape shape;
  WeightForm form;
  std::vector<uint16_t> a, w;
  std::vector<uint8_t> codes, scales;
  std::vector<float> wide_a, wide_w;
  std::vector<float> c, peer_c;

  Operands(const GemmShape& s, WeightForm weight_form) : shape(s), form(weight_form) {
    std::mt19937_64 random(1);
    c.resize(static_cast<size_t>(s.m * s.n));
    peer_c.resize(c.size());
    if (form == WeightForm::kFp32) {
      const auto fill = [&](std::vector<float>& values, int64_t count) {
        values.resize(static_cast<size_t>(count));
        for (float& value : values) value = static_cast<float>(random() >> 40) * 0x1p-23f - 1.0f;
      };
      fill(wide_a, s.m * s.k);
      fill(wide_w, s.n * s.k);
      return;
    }
    const auto fill_bf16 = [&](std::vector<uint16_t>& values, int64_t count) {
      values.resize(static_cast<size_t>(count));
      for (uint16_t& value : values) {
        const uint64_t bits = random();
        value = static_cast<uint16_t>((bits & 0x807F) | (120 + (bits >> 16) % 8) << 7);
      }
    };
    const auto fill_bytes = [&](std::vector<uint8_t>& values, int64_t count, auto make) {
      values.resize(static_cast<size_t>(count));
      for (uint8_t& value : values) value = static_cast<uint8_t>(make(random()));
    };
    fill_bf16(a, s.m * s.k);
    const int64_t blocks = ceil_div(s.k, kScaleBlock);
    switch (form) {
      case WeightForm::kFp8:
        fill_bytes(codes, s.n * s.k,
                   [](uint64_t bits) { return (bits & 0x80) | (8 + (bits >> 8) % 119); });
        fill_bytes(scales, ceil_div(s.n, kScaleBlock) * blocks,
                   [](uint64_t bits) { return 115 + bits % 8; });
        fill_weights(NumericFormat::kE4M3FN, kScaleBlock);
        break;
      case WeightForm::kFp4:
        fill_bytes(codes, s.n * ceil_div(s.k, 2), [](uint64_t bits) { return bits; });
        fill_bytes(scales, s.n * blocks, [](uint64_t bits) { return 122 + bits % 8; });
        fill_weights(NumericFormat::kE2M1, 1);
        break;
      default:
        fill_bf16(w, s.n * s.k);
    }
  }

  // w = code * scale.
  void fill_weights(NumericFormat format, int64_t scale_rows) {
    std::array<float, 256> values = {};
    const uint32_t count = format == NumericFormat::kE2M1 ? 16 : 256;
    for (uint32_t code = 0; code < count; ++code) values[code] = decode(format, code);
    const int64_t blocks = ceil_div(shape.k, kScaleBlock);
    w.resize(static_cast<size_t>(shape.n * shape.k));
    for (int64_t n = 0; n < shape.n; ++n) {
      for (int64_t k = 0; k < shape.k; ++k) {
        const auto scale = scales[static_cast<size_t>(n / scale_rows * blocks + k / kScaleBlock)];
        const int64_t at = n * shape.k + k;  // K is even for fp4
        const uint8_t byte = codes[static_cast<size_t>(
            format == NumericFormat::kE2M1 ? n * ceil_div(shape.k, 2) + k / 2 : at)];
        const uint8_t code =
            format == NumericFormat::kE2M1 ? (k % 2 == 0 ? byte & 15 : byte >> 4) : byte;
        const float value = std::ldexp(values[code], scale - 127);
        w[static_cast<size_t>(at)] =
            static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);  // exact
      }
    }
  }

  GemmOperand activation_operand() const {
    return form == WeightForm::kFp32 ? fp32_operand(wide_a.data(), shape.k)
                                     : bf16_operand(a.data(), shape.k);
  }
  GemmOperand weight_operand() const {
    const int64_t blocks = ceil_div(shape.k, kScaleBlock);
    switch (form) {
      case WeightForm::kBf16:
        return bf16_operand(w.data(), shape.k);
      case WeightForm::kFp8:
        return fp8_tiles_operand(codes.data(), shape.k, scales.data(), blocks);
      case WeightForm::kFp4:
        return fp4_operand(codes.data(), ceil_div(shape.k, 2), scales.data(), blocks);
      case WeightForm::kFp32:
        return fp32_operand(wide_w.data(), shape.k);
    }
    return {};
  }
  GemmPeerOperands peer_operands() {
    if (form == WeightForm::kFp32) {
      return {shape, GemmType::kFp32, wide_a.data(), wide_w.data(), peer_c.data()};
    }
    return {shape, GemmType::kBf16, a.data(), w.data(), peer_c.data()};
  }
  void run(Target target) {
    gemm(shape.m, shape.n, shape.k, activation_operand(), weight_operand(),
         fp32_output(c.data(), shape.n), {target, 1});
  }
  // Relative to the largest result.
  double difference() const {
    double largest = 0, apart = 0;
    for (size_t i = 0; i < c.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(peer_c[i])));
      apart = std::max(apart, std::abs(static_cast<double>(c[i]) - peer_c[i]));
    }
    return largest > 0 ? apart / largest : apart;
  }
};

KernelBenchCase gemm_case(const GemmShape& shape, WeightForm form, const std::string& peer) {
  KernelBenchCase bench;
  bench.kernel = kernel_name(form);
  bench.header = "sim/kernels/gemm.h";
  bench.shape = shape_text(shape, form);
  bench.peer = peer;
  bench.targets = form == WeightForm::kFp32 ? BenchTargets::kVector : BenchTargets::kAll;
  bench.work = gemm_gflop(shape.m, shape.n, shape.k);
  bench.unit = "Gflop/s";
  // One rounding to bf16 (2^-8 of a result), which ATen's bf16 product makes and ours does not.
  bench.tolerance = 0x1p-8;
  return bench;
}

KernelBenchCase against_peer(const GemmShape& shape, WeightForm form, const GemmPeer& peer) {
  const std::string type = form == WeightForm::kFp32 ? " fp32" : " bf16";
  KernelBenchCase bench = gemm_case(shape, form, peer.name + type);
  bench.prepare = [shape, form, make = peer.make] {
    const auto operands = std::make_shared<Operands>(shape, form);
    const std::function<void()> run = make(operands->peer_operands());
    return BenchPair{[operands](Target target) { operands->run(target); },
                     [operands, run](Target) { run(); },
                     [operands] { return operands->difference(); }};
  };
  return bench;
}

KernelBenchCase against_fma_peak(const GemmShape& shape) {
  KernelBenchCase bench = gemm_case(shape, WeightForm::kFp32, "fma peak: chains in registers");
  bench.targets = BenchTargets::kFma;
  bench.prepare = [shape] {
    const auto operands = std::make_shared<Operands>(shape, WeightForm::kFp32);
    const double flops = gemm_gflop(shape.m, shape.n, shape.k) * 1e9;
    return BenchPair{[operands](Target target) { operands->run(target); },
                     [flops](Target target) { run_fma_chains(target, flops); }};
  };
  return bench;
}

#if DEEPINFER_SIM_ONEDNN
// oneDNN's matmul on one thread.
class DnnlMatmul {
 public:
  DnnlMatmul(const GemmPeerOperands& x, bool packed)
      : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    using dnnl::memory;
    omp_set_num_threads(1);
    const GemmShape& s = x.shape;
    const auto type = x.type == GemmType::kFp32 ? memory::data_type::f32 : memory::data_type::bf16;
    const memory::desc a({s.m, s.k}, type, memory::format_tag::ab);
    const memory::desc w({s.k, s.n}, type, memory::format_tag::ba);  // [N, K] row-major
    const memory::desc w_any({s.k, s.n}, type, memory::format_tag::any);
    const memory::desc c({s.m, s.n}, memory::data_type::f32, memory::format_tag::ab);
    const memory::desc& w_wanted = packed ? w_any : w;
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc description(engine_, a, w_wanted, c);
#else
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, w_wanted, c), engine_);
#endif
    matmul_ = dnnl::matmul(description);
    // oneDNN takes its sources as void*, and leaves them alone.
    memory weights(w, engine_, const_cast<void*>(x.w));
    if (description.weights_desc() != w) {
      memory reordered(description.weights_desc(), engine_);
      dnnl::reorder(weights, reordered).execute(stream_, weights, reordered);
      stream_.wait();
      weights = reordered;
    }
    arguments_ = {{DNNL_ARG_SRC, memory(a, engine_, const_cast<void*>(x.a))},
                  {DNNL_ARG_WEIGHTS, weights},
                  {DNNL_ARG_DST, memory(c, engine_, x.c)}};
  }
  void run() {
    matmul_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul matmul_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

std::string version_text(int major, int minor, int patch) {
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

// A libtorch may bring a oneDNN of its own, whose functions then stand in for the ones that were
// linked. Within one major version that is harmless.
bool has_built_version() { return dnnl_version()->major == DNNL_VERSION_MAJOR; }
#endif

}  // namespace

std::string onednn_version() {
#if DEEPINFER_SIM_ONEDNN
  const dnnl_version_t* found = dnnl_version();
  const std::string version = version_text(found->major, found->minor, found->patch);
  if (has_built_version()) return version;
  return "none: built for " +
         version_text(DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR, DNNL_VERSION_PATCH) +
         ", but the process has " + version;
#else
  return "none: built without oneDNN";
#endif
}

std::vector<GemmPeer> onednn_gemm_peers() {
  std::vector<GemmPeer> peers;
#if DEEPINFER_SIM_ONEDNN
  if (!has_built_version()) return peers;
  for (const bool packed : {false, true}) {
    peers.push_back(
        {"oneDNN " + onednn_version() + (packed ? ", W packed beforehand," : ", W row-major,"),
         packed, [packed](const GemmPeerOperands& operands) -> std::function<void()> {
           const auto matmul = std::make_shared<DnnlMatmul>(operands, packed);
           return [matmul] { matmul->run(); };
         }});
  }
#endif
  return peers;
}

std::vector<KernelBenchCase> gemm_bench_cases(const std::vector<GemmPeer>& peers) {
  // A square, and the model's at decode, at 16 tokens and at a chunk: an expert's or shared
  // expert's gate and up (model.md 2.3: [2304, 5120]) and attn.wq_b [32768, 1280].
  const GemmShape shapes[] = {{1024, 1024, 1024}, {1, 2304, 5120},  {16, 2304, 5120},
                              {128, 2304, 5120},  {1, 32768, 1280}, {16, 32768, 1280}};
  // fp32: the square, the router [384, 5120], the hyper-connection mix [24, 20480], and a slice of
  // the head (rows of one of 64 leaves, 129280 / 64).
  const GemmShape fp32_shapes[] = {{1024, 1024, 1024}, {1, 384, 5120},  {64, 384, 5120},
                                   {64, 24, 20480},    {1, 2020, 5120}, {16, 2020, 5120}};
  std::vector<KernelBenchCase> cases;
  for (const WeightForm form : {WeightForm::kBf16, WeightForm::kFp8, WeightForm::kFp4}) {
    for (const GemmShape& shape : shapes) {
      for (const GemmPeer& peer : peers) {
        if (!peer.packed || form == WeightForm::kBf16) {
          cases.push_back(against_peer(shape, form, peer));
        }
      }
    }
  }
  for (const GemmShape& shape : fp32_shapes) {
    for (const GemmPeer& peer : peers) {
      if (!peer.packed) cases.push_back(against_peer(shape, WeightForm::kFp32, peer));
    }
    // One row is bound by reading W, at a few percent of the peak.
    if (shape.m > 1) cases.push_back(against_fma_peak(shape));
  }
  return cases;
}

}  // namespace deepinfer
