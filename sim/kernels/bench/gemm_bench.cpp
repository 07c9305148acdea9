// Measures the GEMM kernels side by side with named peers.
#include "sim/kernels/bench/gemm_bench.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <unordered_map>

#if DEEPINFER_SIM_ONEDNN
#include <omp.h>
#include <oneapi/dnnl/dnnl.hpp>
#endif

#include "sim/kernels/bench/bench_clock.h"

namespace deepinfer {
namespace {

// Operands of one shape. Values are of size about 1, codes never NaN: nothing that a kernel would
// treat in a special way.
struct Operands {
  std::vector<uint16_t> a, w;
  std::vector<uint8_t> fp8, fp8_scales, fp4, fp4_scales;
  std::vector<float> c, peer_c;

  Operands(const GemmShape& s, uint64_t seed) {
    std::mt19937_64 random(seed);
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
    fill_bf16(w, s.n * s.k);
    const int64_t blocks = (s.k + 31) / 32;
    fill_bytes(fp8, s.n * s.k,
               [](uint64_t bits) { return (bits & 0x80) | (8 + (bits >> 8) % 119); });
    fill_bytes(fp8_scales, (s.n + 31) / 32 * blocks, [](uint64_t bits) { return 115 + bits % 8; });
    fill_bytes(fp4, s.n * ((s.k + 1) / 2), [](uint64_t bits) { return bits; });
    fill_bytes(fp4_scales, s.n * blocks, [](uint64_t bits) { return 122 + bits % 8; });
    c.resize(static_cast<size_t>(s.m * s.n));
    peer_c.resize(c.size());
  }
};

struct Run {
  std::vector<double> seconds, peer_seconds, ratios;
};

// Kernel and peer in turns, so that both see the same machine.
Run run_pairs(const GemmBenchOptions& options, const std::function<void()>& kernel,
              const std::function<void()>& peer) {
  Run run;
  const auto timed = [&](const std::function<void()>& what) {
    const double start = bench_seconds(options.thread_time);
    what();
    return bench_seconds(options.thread_time) - start;
  };
  for (int i = 0; i <= options.pairs; ++i) {
    const bool kernel_first = i % 2 == 0;
    double kernel_time = kernel_first ? timed(kernel) : 0;
    const double peer_time = timed(peer);
    if (!kernel_first) kernel_time = timed(kernel);
    if (i == 0) continue;  // first use of memory and code
    run.seconds.push_back(kernel_time);
    run.peer_seconds.push_back(peer_time);
    run.ratios.push_back(peer_time / kernel_time);
  }
  return run;
}

double flops(const GemmShape& s) {
  return 2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
}

std::vector<Target> targets_of(const GemmBenchOptions& options) {
  if (!options.targets.empty()) return options.targets;
  std::vector<Target> targets;
  for (const Target target : available_targets()) {
    if (target != Target::kScalar) targets.push_back(target);
  }
  return targets;
}

GemmBenchResult result_of(const GemmShape& shape, std::string kernel, Target target, const Run& run,
                          double weight_bytes, std::string peer) {
  GemmBenchResult result;
  result.shape = shape;
  result.kernel = std::move(kernel);
  result.target = target;
  const double seconds = median(run.seconds), peer_seconds = median(run.peer_seconds);
  result.median_us = seconds * 1e6;
  result.gflops = flops(shape) / seconds * 1e-9;
  result.weight_gbytes = weight_bytes / seconds * 1e-9;
  result.peer = std::move(peer);
  result.peer_median_us = peer_seconds * 1e6;
  result.peer_gflops = flops(shape) / peer_seconds * 1e-9;
  result.ratio = median(run.ratios);
  return result;
}

#if DEEPINFER_SIM_ONEDNN
// oneDNN's bf16 x bf16 -> fp32 matmul on one thread.
class DnnlMatmul {
 public:
  DnnlMatmul(const GemmShape& s, Operands& x, bool packed)
      : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    using dnnl::memory;
    omp_set_num_threads(1);
    const auto bf16 = memory::data_type::bf16;
    const memory::desc a({s.m, s.k}, bf16, memory::format_tag::ab);
    const memory::desc w({s.k, s.n}, bf16, memory::format_tag::ba);  // [N, K] row-major
    const memory::desc w_any({s.k, s.n}, bf16, memory::format_tag::any);
    const memory::desc c({s.m, s.n}, memory::data_type::f32, memory::format_tag::ab);
    const memory::desc& w_wanted = packed ? w_any : w;
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc description(engine_, a, w_wanted, c);
#else
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, w_wanted, c), engine_);
#endif
    matmul_ = dnnl::matmul(description);
    memory weights(w, engine_, x.w.data());
    if (description.weights_desc() != w) {
      memory reordered(description.weights_desc(), engine_);
      dnnl::reorder(weights, reordered).execute(stream_, weights, reordered);
      stream_.wait();
      weights = reordered;
    }
    arguments_ = {{DNNL_ARG_SRC, memory(a, engine_, x.a.data())},
                  {DNNL_ARG_WEIGHTS, weights},
                  {DNNL_ARG_DST, memory(c, engine_, x.peer_c.data())}};
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
#endif

}  // namespace

std::vector<GemmShape> gemm_bench_shapes() {
  return {{1024, 1024, 1024}, {1, 2304, 5120},   {16, 2304, 5120},
          {1, 32768, 1280},   {16, 32768, 1280}, {128, 2304, 5120}};
}

std::string_view gemm_bench_peer() {
#if DEEPINFER_SIM_ONEDNN
  static const std::string name = [] {
    const dnnl_version_t* version = dnnl_version();
    return "oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
           std::to_string(version->patch);
  }();
  return name;
#else
  return {};
#endif
}

std::vector<GemmBenchResult> bench_gemm_bf16([[maybe_unused]] const std::vector<GemmShape>& shapes,
                                             [[maybe_unused]] const GemmBenchOptions& options) {
  std::vector<GemmBenchResult> results;
#if DEEPINFER_SIM_ONEDNN
  for (const GemmShape& s : shapes) {
    Operands x(s, options.seed);
    const int64_t blocks = (s.k + 31) / 32;
    struct Weights {
      const char* name;
      GemmOperand operand;
      size_t bytes;
    };
    const Weights all[] = {
        {"bf16 x bf16", bf16_operand(x.w.data(), s.k), x.w.size() * 2},
        {"bf16 x fp8", fp8_tiles_operand(x.fp8.data(), s.k, x.fp8_scales.data(), blocks),
         x.fp8.size() + x.fp8_scales.size()},
        {"bf16 x fp4", fp4_operand(x.fp4.data(), (s.k + 1) / 2, x.fp4_scales.data(), blocks),
         x.fp4.size() + x.fp4_scales.size()}};
    for (const bool packed : {false, true}) {
      DnnlMatmul peer(s, x, packed);
      const std::string peer_name = std::string(gemm_bench_peer()) +
                                    (packed ? " bf16, W packed beforehand" : " bf16, W row-major");
      for (const Weights& w : all) {
        for (const Target target : targets_of(options)) {
          const auto kernel = [&] {
            gemm(s.m, s.n, s.k, bf16_operand(x.a.data(), s.k), w.operand,
                 fp32_output(x.c.data(), s.n), {target, 1});
          };
          const Run run = run_pairs(options, kernel, [&] { peer.run(); });
          results.push_back(
              result_of(s, w.name, target, run, static_cast<double>(w.bytes), peer_name));
        }
      }
    }
  }
#endif
  return results;
}

std::vector<GemmBenchResult> bench_gemm_fp32(const std::vector<GemmShape>& shapes,
                                             const GemmBenchOptions& options) {
  std::vector<GemmBenchResult> results;
  for (const Target target : targets_of(options)) {
    if (target == Target::kAmx || target == Target::kScalar) continue;  // AMX has no fp32 form
    for (const GemmShape& s : shapes) {
      std::mt19937_64 random(options.seed);
      const auto make = [&](int64_t count) {
        std::vector<float> values(static_cast<size_t>(count));
        for (float& value : values) value = static_cast<float>(random() >> 40) * 0x1p-23f - 1.0f;
        return values;
      };
      const std::vector<float> a = make(s.m * s.k), w = make(s.n * s.k);
      std::vector<float> c(static_cast<size_t>(s.m * s.n));
      double peak = 0;
      const auto kernel = [&] {
        gemm(s.m, s.n, s.k, fp32_operand(a.data(), s.k), fp32_operand(w.data(), s.k),
             fp32_output(c.data(), s.n), {target, 1});
      };
      const Run run = run_pairs(options, kernel, [&] {
        peak = std::max(peak, fma_peak_gflops(target, options.thread_time));
      });
      GemmBenchResult result =
          result_of(s, "fp32 x fp32", target, run, static_cast<double>(s.n * s.k * 4), "fma peak");
      result.peer_gflops = peak;
      result.peer_median_us = flops(s) / peak * 1e-3;
      result.ratio = result.gflops / peak;
      results.push_back(result);
    }
  }
  return results;
}

}  // namespace deepinfer
