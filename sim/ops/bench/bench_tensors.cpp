#include "sim/ops/bench/bench_tensors.h"

#include <algorithm>
#include <limits>
#include <memory>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <torch/version.h>

#include "sim/kernels/bench/codec_bench.h"
#include "sim/ops/bench/aten_bench.h"

namespace deepinfer {
namespace bench {
namespace {

at::Generator generator() { return at::make_generator<at::CPUGeneratorImpl>(1); }

// Integers: the share of unequal elements. Else the largest difference relative to the largest
// finite number; infinity where one side is infinite or NaN and the other is not the same.
double difference_of(const Tensor& kernel, const Tensor& peer) {
  TORCH_INTERNAL_ASSERT(kernel.numel() == peer.numel(), "results ", kernel.sizes(), " and ",
                        peer.sizes());
  if (!at::isFloatingType(kernel.scalar_type())) {
    const Tensor unequal = kernel.flatten().to(at::kLong).ne(peer.flatten().to(at::kLong));
    return unequal.to(at::kDouble).mean().item<double>();
  }
  const Tensor a = kernel.flatten().to(at::kDouble), b = peer.flatten().to(at::kDouble);
  const Tensor finite = at::isfinite(a).logical_and(at::isfinite(b));
  if (at::logical_or(finite, a.eq(b)).logical_not().any().item<bool>()) {
    return std::numeric_limits<double>::infinity();
  }
  const Tensor zero = at::zeros({}, a.options());
  const double largest = at::where(finite, b.abs(), zero).max().item<double>();
  const double apart = at::where(finite, (a - b).abs(), zero).max().item<double>();
  return largest > 0 ? apart / largest : apart;
}

}  // namespace

Tensor normal_numbers(at::IntArrayRef shape, at::ScalarType type) {
  return at::randn(shape, generator(), at::TensorOptions().dtype(at::kFloat)).to(type);
}

Tensor whole_numbers(at::IntArrayRef shape, int64_t limit, at::ScalarType type) {
  return at::randint(limit, shape, generator(), at::TensorOptions().dtype(type));
}

Tensor e4m3fn_values(const Tensor& codes) {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 1)
  return codes.view(at::kFloat8_e4m3fn).to(at::kFloat);
#else
  // value = mantissa * 2^(exponent - 10), with the hidden bit where the exponent field is not 0.
  static const Tensor table = [] {
    const Tensor code = at::arange(256, at::kInt);
    const Tensor field = code.div(8, "floor").remainder(16), low = code.remainder(8);
    const Tensor mantissa = at::where(field.gt(0), low + 8, low).to(at::kFloat);
    const Tensor magnitude = at::ldexp(mantissa, field.clamp_min(1) - 10);
    return at::where(code.ge(128), -magnitude, magnitude);
  }();
  return table.index_select(0, codes.flatten().to(at::kInt)).view(codes.sizes());
#endif
}

BenchPair aten_pair(std::function<void(Target)> kernel, std::vector<Tensor> results,
                    std::function<std::vector<Tensor>()> peer) {
  const auto peer_results = std::make_shared<std::vector<Tensor>>();
  return {std::move(kernel),
          [peer = std::move(peer), peer_results](Target) { *peer_results = peer(); },
          [results = std::move(results), peer_results] {
            TORCH_INTERNAL_ASSERT(results.size() == peer_results->size());
            double worst = 0;
            for (size_t i = 0; i < results.size(); ++i) {
              worst = std::max(worst, difference_of(results[i], (*peer_results)[i]));
            }
            return worst;
          }};
}

KernelBenchCase aten_case(const std::string& kernel, const std::string& header,
                          const std::string& shape, const std::string& peer, int64_t values,
                          double tolerance, std::function<BenchPair()> prepare) {
  KernelBenchCase bench;
  bench.kernel = kernel;
  bench.header = "sim/kernels/" + header;
  bench.shape = shape;
  bench.peer = "ATen: " + peer;
  bench.work = 1e-9 * static_cast<double>(values);
  bench.unit = "Gvalue/s";
  bench.tolerance = tolerance;
  bench.prepare = std::move(prepare);
  return bench;
}

std::string shape_text(at::IntArrayRef shape) {
  std::string text = "[";
  for (const int64_t size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

}  // namespace bench

AtenBenchScope::AtenBenchScope() : threads_before_(at::get_num_threads()) {
  at::set_num_threads(1);
  // OpenBLAS with its own threads does not ask OpenMP.
  using SetThreads = void (*)(int);
  const auto set_threads =
      reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "openblas_set_num_threads"));
  if (set_threads != nullptr) set_threads(1);
}

AtenBenchScope::~AtenBenchScope() { at::set_num_threads(threads_before_); }

std::vector<GemmPeer> aten_gemm_peers() {
  return {{"ATen " TORCH_VERSION " matmul, W row-major,", false,
           [](const GemmPeerOperands& x) -> std::function<void()> {
             const auto type = x.type == GemmType::kFp32 ? at::kFloat : at::kBFloat16;
             const auto matrix = [](const void* data, int64_t rows, int64_t columns,
                                    at::ScalarType dtype) {
               return at::from_blob(const_cast<void*>(data), {rows, columns}, dtype);
             };
             const at::Tensor a = matrix(x.a, x.shape.m, x.shape.k, type);
             const at::Tensor w = matrix(x.w, x.shape.n, x.shape.k, type).t();
             const at::Tensor c = matrix(x.c, x.shape.m, x.shape.n, at::kFloat);
             return [a, w, c] { c.copy_(at::matmul(a, w)); };
           }}};
}

std::vector<KernelBenchCase> kernel_bench_cases() {
  const std::vector<GemmPeer> onednn = onednn_gemm_peers();
  std::vector<KernelBenchCase> cases =
      gemm_bench_cases(onednn.empty() ? aten_gemm_peers() : onednn);
  for (auto part : {expert_bench_cases, codec_bench_cases, quantize_bench_cases,
                    function_bench_cases, row_bench_cases, hyper_connection_bench_cases,
                    attention_bench_cases, selection_bench_cases, engram_bench_cases}) {
    for (KernelBenchCase& bench : part()) cases.push_back(std::move(bench));
  }
  return cases;
}

}  // namespace deepinfer
