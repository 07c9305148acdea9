// Names the instruction sets that a kernel can run on, and finds those of this machine.
#include "sim/kernels/target.h"

#include <algorithm>
#include <array>

#include "platform/errors.h"
#include "platform/nearest_name.h"
#include "sim/kernels/amx.h"
#include "sim/kernels/highway_targets.h"

namespace deepinfer {
namespace {

struct TargetName {
  Target target;
  std::string_view name;
};

constexpr std::array<TargetName, 5> kNames = {{{Target::kAmx, "amx"},
                                               {Target::kAvx512, "avx512"},
                                               {Target::kAvx2, "avx2"},
                                               {Target::kNeon, "neon"},
                                               {Target::kScalar, "scalar"}}};

thread_local std::optional<Target> thread_target;

std::vector<Target> find_targets() {
  std::vector<Target> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  // Highway's AVX2 also uses BMI2 and F16C, which every processor with AVX2 and FMA has.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (DEEPINFER_SIM_HAVE_AVX512 && avx512 && amx_permitted()) found.push_back(Target::kAmx);
  if (DEEPINFER_SIM_HAVE_AVX512 && avx512) found.push_back(Target::kAvx512);
  if (DEEPINFER_SIM_HAVE_AVX2 && avx2) found.push_back(Target::kAvx2);
#endif
  if (DEEPINFER_SIM_HAVE_NEON) found.push_back(Target::kNeon);
  found.push_back(Target::kScalar);
  return found;
}

}  // namespace

std::string_view target_name(Target target) {
  for (const TargetName& entry : kNames) {
    if (entry.target == target) return entry.name;
  }
  DEEPINFER_ASSERT(false, "target " << static_cast<int>(target));
  return {};
}

Target parse_target(std::string_view name) {
  std::vector<std::string_view> known;
  for (const TargetName& entry : kNames) {
    if (entry.name == name) return entry.target;
    known.push_back(entry.name);
  }
  throw ConfigError({.what = "unknown kernel target",
                     .expected = "amx, avx512, avx2, neon or scalar",
                     .found = std::string(name),
                     .remedy = did_you_mean(name, known)});
}

std::span<const Target> available_targets() {
  static const std::vector<Target> targets = find_targets();
  return targets;
}

bool is_available(Target target) {
  const std::span<const Target> targets = available_targets();
  return std::find(targets.begin(), targets.end(), target) != targets.end();
}

Target best_target() { return thread_target.value_or(available_targets().front()); }

Target best_vector_target() { return vector_target(best_target()); }

void check_available(Target target) {
  if (is_available(target)) return;
  std::string names;
  for (const Target available : available_targets()) {
    names += std::string(names.empty() ? "" : ", ") + std::string(target_name(available));
  }
  throw UnsupportedError({.what = "this machine or build cannot run a kernel target",
                          .expected = names,
                          .found = std::string(target_name(target)),
                          .remedy = "choose one of those expected, or leave the target out"});
}

Target vector_target(Target target) {
  const Target runs = target == Target::kAmx ? Target::kAvx512 : target;
  check_available(runs);
  return runs;
}

TargetScope::TargetScope(Target target) : outer_(thread_target) {
  check_available(target);
  thread_target = target;
}
TargetScope::~TargetScope() { thread_target = outer_; }

std::string machine_features() {
  std::string found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const auto add = [&found](bool has, const char* name) {
    if (has) found += std::string(found.empty() ? "" : " ") + name;
  };
  add(__builtin_cpu_supports("avx2"), "avx2");
  add(__builtin_cpu_supports("fma"), "fma");
  add(__builtin_cpu_supports("avx512f"), "avx512f");
  add(__builtin_cpu_supports("avx512bw"), "avx512bw");
  add(__builtin_cpu_supports("avx512vbmi"), "avx512vbmi");
  add(__builtin_cpu_supports("avx512bf16"), "avx512_bf16");
  add(is_available(Target::kAmx), "amx_bf16");
#elif defined(__aarch64__)
  found = "asimd";
#endif
  return found;
}

}  // namespace deepinfer
