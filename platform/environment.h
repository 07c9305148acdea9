// The DEEPINFER_* environment variables: one typed, documented registry, resolved once and then
// passed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {

enum class VariableType { kBool, kInteger, kEnum, kRankList, kString };

// Where model code runs (systems.md P1).
enum class DeviceKind { kCpu, kNeuron };

// How decode is compiled (systems.md G2).
enum class GraphMode { kNone, kRegions };

// One entry of the registry.
struct VariableInfo {
  std::string_view name;
  VariableType type;
  std::string_view expected;       // the values it takes, as help and error messages show them
  std::string_view default_value;  // in the variable's own notation; empty: unset
  std::string_view
      default_meaning;  // what leaving it unset means; empty where default_value says it
  std::string_view doc;
  bool read_by_this_build;  // false: accepted and checked, but nothing here depends on it
};

// Every variable of the deployment (systems.md P5).
const std::vector<VariableInfo>& all_variables();
std::string_view variable_type_name(VariableType type);

// A variable as resolved.
struct Setting {
  const VariableInfo* info = nullptr;
  std::string value;              // as given, or the default; empty: unset
  bool from_environment = false;  // false: the default
};

// The values of all variables. Immutable once built, so it may be shared between threads; never
// global: whoever needs it is given it.
class Environment {
 public:
  // Takes the DEEPINFER_* entries of `variables`, ignores all others. Throws ConfigError for an
  // unknown DEEPINFER_* name (naming the nearest known one) and for a value outside its type.
  explicit Environment(const std::map<std::string, std::string>& variables);
  // The same from this process's environment.
  static Environment from_process();

  DeviceKind device() const { return device_; }
  std::optional<int64_t> fp8_max() const {
    return fp8_max_;
  }  // 448, 240, 224; empty: the run's numerics
  std::optional<int64_t> num_kv_blocks() const { return num_kv_blocks_; }
  GraphMode graph_mode() const { return graph_mode_; }
  const std::optional<std::string>& compile_backend() const { return compile_backend_; }
  std::optional<int64_t> local_rank() const { return local_rank_; }
  bool hier_allreduce() const { return hier_allreduce_; }
  std::optional<int64_t> moe_capacity() const { return moe_capacity_; }  // rows an expert
  std::optional<bool> moe_flag_force() const { return moe_flag_force_; }
  bool region_timing() const { return region_timing_; }
  bool host_timing() const { return host_timing_; }
  const std::vector<int64_t>& profile_ranks() const { return profile_ranks_; }  // ascending
  bool enforce_eager() const { return enforce_eager_; }

  // All variables in registry order.
  const std::vector<Setting>& settings() const { return settings_; }

 private:
  std::vector<Setting> settings_;
  DeviceKind device_ = DeviceKind::kCpu;
  std::optional<int64_t> fp8_max_;
  std::optional<int64_t> num_kv_blocks_;
  GraphMode graph_mode_ = GraphMode::kNone;
  std::optional<std::string> compile_backend_;
  std::optional<int64_t> local_rank_;
  bool hier_allreduce_ = true;
  std::optional<int64_t> moe_capacity_;
  std::optional<bool> moe_flag_force_;
  bool region_timing_ = false;
  bool host_timing_ = false;
  std::vector<int64_t> profile_ranks_;
  bool enforce_eager_ = true;
};

}  // namespace deepinfer
