#include "golden/conformance/op_case.h"

#include <map>

#include "platform/ops.h"

namespace deepinfer::conformance {

namespace {

std::vector<OpCase> make_cases() {
  std::vector<OpCase> cases;
  internal::add_linear_cases(cases);
  internal::add_quantize_cases(cases);
  internal::add_row_cases(cases);
  internal::add_hyper_connection_cases(cases);
  internal::add_key_value_cases(cases);
  internal::add_selection_cases(cases);
  internal::add_attention_cases(cases);
  internal::add_moe_cases(cases);
  internal::add_engram_cases(cases);
  std::map<std::string, int64_t> count;
  for (OpCase& one : cases) one.number = count[one.op]++;
  return cases;
}

}  // namespace

const std::vector<OpCase>& all_cases() {
  static const std::vector<OpCase> cases = make_cases();
  return cases;
}

const std::vector<std::string>& all_case_ops() {
  static const std::vector<std::string> ops = [] {
    std::vector<std::string> names;
    for (const OpCase& one : all_cases()) {
      if (std::find(names.begin(), names.end(), one.op) == names.end()) names.push_back(one.op);
    }
    return names;
  }();
  return ops;
}

}  // namespace deepinfer::conformance
