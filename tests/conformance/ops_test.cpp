// The conformance suite of all ops on every kernel target, and proof that it notices wrong results.
#include "platform/ops.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "golden/conformance/bounds.h"
#include "golden/conformance/case_values.h"
#include "golden/conformance/conformance.h"
#include "golden/conformance/conformance_report.h"
#include "platform/fault.h"
#include "platform/op.h"
#include "sim/kernels/target.h"
#include "sim/ops/host_ops.h"
#include "tests/conformance/ranked_ops.h"
#include "tests/random_seed.h"

namespace deepinfer::conformance {
namespace {

// Changes the outputs of an op.
using Spoil = std::function<void(Tensors& outputs)>;

Implementation on_target(Target target, Spoil spoil = {}) {
  return {"canonical/" + std::string(target_name(target)),
          [target, spoil](const std::function<Tensors()>& op) {
            const TargetScope scope(target);
            Tensors outputs = op();
            if (spoil) spoil(outputs);
            return outputs;
          }};
}

std::vector<Implementation> all_targets() {
  std::vector<Implementation> made;
  for (const Target target : available_targets()) made.push_back(on_target(target));
  return made;
}

ConformanceReport run(const std::vector<Implementation>& implementations,
                      const ConformanceOptions& options) {
  install_host_kernels();
  return run_conformance(implementations, options);
}

ConformanceOptions one_case(const OpCase& one) {
  ConformanceOptions options;
  options.op_patterns = {one.op};
  options.case_number = one.number;
  return options;
}

// The cases of an op whose results are judged.
std::vector<const OpCase*> judged_cases(const std::string& op) {
  std::vector<const OpCase*> found;
  for (const OpCase& one : all_cases()) {
    if (one.op == op && !one.throws) found.push_back(&one);
  }
  return found;
}

// Adds `steps` to the bit pattern of a flat element: neighbouring numbers have neighbouring bits.
void move_bits(Tensor& x, int64_t element, int64_t steps) {
  Tensor made = x.contiguous().clone();
  const at::ScalarType bits = x.scalar_type() == at::kFloat      ? at::kInt
                              : x.scalar_type() == at::kBFloat16 ? at::kShort
                                                                 : x.scalar_type();
  made.view(bits).view({-1}).slice(0, element, element + 1).add_(steps);
  x = made;
}

Tensor one_value(const Tensor& x, int64_t element) { return x.contiguous().view({-1})[element]; }

TEST_CASE("every op of the dispatcher has cases, and no other") {
  deepinfer::internal::keep_op_registrations();
  std::set<std::string> registered;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    constexpr std::string_view kNamespace = "deepinfer::";
    if (name.name.starts_with(kNamespace)) registered.insert(name.name.substr(kNamespace.size()));
  }
  const std::set<std::string> with_cases(all_case_ops().begin(), all_case_ops().end());
  CHECK(registered == with_cases);
  for (const std::string& op : registered) {
    CAPTURE(op);
    int64_t throwing = 0, empty = 0, judged = 0;
    for (const OpCase& one : all_cases()) {
      if (one.op != op) continue;
      throwing += one.throws ? 1 : 0;
      judged += one.throws ? 0 : 1;
      RandomStream random(1, one.op, static_cast<uint32_t>(one.number));
      for (const Tensor& input : one.inputs(random)) {
        if (input.defined() && input.numel() == 0) {
          ++empty;
          break;
        }
      }
    }
    CHECK(throwing >= 1);
    CHECK(empty >= 1);
    CHECK(judged >= 15);
  }
}

TEST_CASE("all ops on all targets") {
  ConformanceOptions options;
  options.seed = random_seed(1);
  const ConformanceReport report = run(all_targets(), options);
  for (const Failure& failure : report.failures) {
    CHECK_MESSAGE(false, failure.op << " case " << failure.case_number << " (" << failure.case_name
                                    << "): " << failure.kind << ", " << failure.implementation
                                    << ": " << failure.detail << "; " << failure.replay);
  }
  CHECK(report.exit_code() == ExitCode::kMatch);
  CHECK(report.implementations.size() == available_targets().size());
  for (const OpResult& op : report.ops) {
    CAPTURE(op.op);
    CHECK(op.equal_between_targets == op.cases);
    CHECK(op.worst_bound_share <= 1);
    // Most results are bounded: what may overflow is one of six kinds of values, in larger shapes
    // for some ops.
    CHECK(op.elements > 0);
    CHECK(op.unbounded * 2 <= op.elements);
    bool exact = true;
    for (const OpCase* one : judged_cases(op.op)) exact = exact && !one->errors;
    if (exact) {
      CHECK(op.equal_to_reference + op.throwing_cases == op.cases);
    } else {
      CHECK(op.worst_bound_share > 0);  // something was measured
      CHECK(op.worst_nmse < 1e-3);
    }
  }
  std::cout << summary_line(report) << ", " << report.seconds << " s\n";
}

TEST_CASE("one differing bit between two targets is noticed and named, for every op") {
  const Target target = available_targets().back();
  for (const std::string& op : all_case_ops()) {
    CAPTURE(op);
    const OpCase* found = nullptr;
    for (const OpCase* one : judged_cases(op)) {
      const Tensor last = prepare_judgement(*one, {}).reference.back();
      if (last.numel() == 0) continue;
      // A NaN stays one when a bit is added, and need not be the same on all targets.
      if (!one_value(last, last.numel() - 1).isnan().item<bool>()) found = one;
    }
    REQUIRE(found != nullptr);
    // The last element of the last output.
    const Spoil spoil = [](Tensors& outputs) {
      Tensor& last = outputs.back();
      move_bits(last, last.numel() - 1, 1);
    };
    const ConformanceReport report =
        run({on_target(target), on_target(target, spoil)}, one_case(*found));
    CHECK(report.exit_code() == ExitCode::kMismatch);
    const auto differs =
        std::find_if(report.failures.begin(), report.failures.end(),
                     [](const Failure& failure) { return failure.kind == "targets differ"; });
    REQUIRE(differs != report.failures.end());
    CHECK(differs->op == op);
    CHECK(differs->case_number == found->number);
    CHECK(differs->output == found->outputs.back());
    const Tensor reference = prepare_judgement(*found, {}).reference.back();
    std::vector<int64_t> last;
    for (const int64_t size : reference.sizes()) last.push_back(size - 1);
    CHECK(differs->element == last);
    CHECK(differs->detail.find("0x") != std::string::npos);
    CHECK(differs->replay == "deepinfer-sim ops --op " + op + " --case " +
                                 std::to_string(found->number) + " --seed 1");
    CHECK(report.cases.at(0).equal_between_targets == false);
    CHECK(report.ops.at(0).failures >= 1);
  }
}

// Each case of each op, at the element with the widest bound: the largest allowed result passes,
// the next number after it does not.
TEST_CASE("a result just beyond its bound is noticed, in every case of every op") {
  const Target target = available_targets().front();
  std::map<std::string, int64_t> tried;
  for (const OpCase& one : all_cases()) {
    if (one.throws) continue;
    install_host_kernels();
    const Judgement judgement = prepare_judgement(one, {});
    for (size_t i = 0; i < judgement.reference.size(); ++i) {
      const Tensor& reference = judgement.reference[i];
      if (reference.numel() == 0) continue;
      CAPTURE(one.op);
      CAPTURE(one.number);
      CAPTURE(one.name);
      CAPTURE(one.outputs[i]);
      Tensor inside, outside;
      if (!judgement.error[i].defined()) {
        const Tensor finite = reference.isfinite().reshape({-1}).nonzero();
        if (finite.size(0) == 0) continue;
        inside = outside = reference;
        move_bits(outside, finite[0].item<int64_t>(), 1);
      } else {
        const Tensor bounded =
            judgement.error[i].isfinite().logical_and(judgement.largest[i].isfinite());
        if (!bounded.any().item<bool>()) continue;
        const int64_t element = judgement.error[i]
                                    .masked_fill(bounded.logical_not(), -1)
                                    .reshape({-1})
                                    .argmax()
                                    .item<int64_t>();
        inside = reference.clone();
        const double largest = one_value(judgement.largest[i], element).item<double>();
        inside.view({-1})[element] = largest;
        outside = inside.clone();
        if (largest == 0) {
          outside.view({-1})[element] = std::numeric_limits<float>::min();
        } else {
          move_bits(outside, element, largest > 0 ? 1 : -1);
        }
      }
      const auto report_of = [&](const Tensor& output) {
        const Spoil spoil = [&, i](Tensors& outputs) {
          outputs = judgement.reference;
          outputs[i] = output;
        };
        return run({on_target(target, spoil)}, one_case(one));
      };
      CHECK(report_of(inside).failures.empty());
      const ConformanceReport report = report_of(outside);
      REQUIRE(report.failures.size() == 1);
      CHECK(report.failures[0].kind ==
            (judgement.error[i].defined() ? "beyond the bound" : "not exact"));
      CHECK(report.failures[0].output == one.outputs[i]);
      ++tried[one.op];
    }
  }
  for (const std::string& op : all_case_ops()) {
    CAPTURE(op);
    CHECK(tried[op] >= 10);
  }
}

// Operands that are not contiguous, and sizes of nothing, through the ops; the kernels' own tests
// have the rest.
TEST_CASE("attention by ranks has the bits of attention over the whole") {
  install_host_kernels();
  const uint64_t seed = random_seed(2);
  struct Size {
    int64_t queries, heads, channels;
  };
  uint32_t case_number = 0;
  for (const Size& size : {Size{4, 5, 48}, Size{1, 16, 512}, Size{0, 3, 32}, Size{3, 0, 32}}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const bool narrow : {false, true}) {
        RandomStream random(seed, "attention_by_ranks", case_number++);
        const int64_t window = 30, entries = 500, chosen = 90;
        const Tensor q =
            strided_copy(random_tensor(random, {size.queries, size.heads, size.channels}, type));
        const Tensor window_rows =
                         strided_copy(random_tensor(random, {window, size.channels}, type)),
                     entry_rows =
                         strided_copy(random_tensor(random, {entries, size.channels}, type));
        const Tensor window_index = at::arange(window, at::kInt).repeat({size.queries, 1});
        const Tensor entry_index =
            random_integers(random, {size.queries, chosen}, entries + 1, at::kInt) - 1;
        if (size.queries > 1) window_index[1].fill_(-1), entry_index[1].fill_(-1);
        const Tensor sink = random_tensor(random, {size.heads}, at::kFloat);
        for (const Target target : available_targets()) {
          const TargetScope scope(target);
          // No heads are not an operand of sparse_attention.
          const bool empty = size.heads == 0;
          const auto [out, lse] =
              empty ? std::make_tuple(at::empty(q.sizes(), q.options()), at::empty({3, 0}))
                    : ops::sparse_attention(q, window_rows, 777, window_index, entry_rows,
                                            entry_index, sink, 0.3, narrow);
          for (const int64_t ranks : {1, 5, 64}) {
            CAPTURE(case_number);
            CAPTURE(ranks);
            CAPTURE(std::string(target_name(target)));
            const auto [ranked, ranked_lse] =
                tests::attention_by_ranks(ranks, q, window_rows, 777, window_index, entry_rows,
                                          entry_index, sink, 0.3, narrow);
            CHECK((ranked.scalar_type() == type));
            CHECK(ranked.sizes() == out.sizes());
            CHECK(tensor_digest(ranked, true, 0) == tensor_digest(out, true, 0));
            CHECK(tensor_digest(ranked_lse, true, 0) == tensor_digest(lse, true, 0));
          }
        }
      }
    }
  }
}

#if defined(DEEPINFER_SIM_FAULT_INJECTION)
TEST_CASE("a fault in a reference is noticed") {
  const std::vector<std::pair<const char*, const char*>> faults = {
      {"fp8_linear", "scale_tile_transposed"},
      {"grouped_linear", "nibbles_swapped"},
      {"fp4_linear", "nibbles_swapped"},
      {"linear_partials", "scale_tile_transposed"},
      {"linear_partials", "nibbles_swapped"},
      {"quantize_aq32", "quantiser_truncates"},
      {"quantize_aq32", "quantiser_scale_one_octave_up"},
      {"fake_quantize_aq32", "quantiser_truncates"},
      {"fake_quantize_fq4_32", "quantiser_truncates"},
      {"fake_quantize_fq4_16", "quantiser_truncates"},
      {"rms_norm", "norm_eps_1e-6"},
      {"rope", "rope_pairs_halves"},
      {"rope", "rope_on_first_channels"},
      {"hc_mix", "sinkhorn_19_iterations"},
      {"hc_mix", "hc_eps_zero"},
      {"hc_mix", "post_not_doubled"},
      {"hc_expand", "mix_matrix_transposed"},
      {"compress_pool", "pool_softmax_over_channels"},
      {"index_score", "index_relu_missing"},
      {"topk_select", "topk_one_fewer"},
      {"topk_select", "ties_to_larger_index"},
      {"topk_merge", "ties_to_larger_index"},
      {"candidate_blocks", "ties_to_larger_index"},
      {"candidate_blocks", "newest_candidate_block_not_pinned"},
      {"sparse_attention", "sink_missing"},
      {"sparse_attention", "sink_scaled"},
      {"attention_merge", "sink_missing"},
      {"moe_gate", "router_sigmoid"},
      {"moe_gate", "router_bias_missing"},
      {"moe_gate", "router_bias_in_weights"},
      {"moe_gate", "routed_scaling_missing"},
      {"swiglu", "swiglu_clamp_missing"},
      {"engram_hash", "hash_reads_before_the_start"},
      {"engram_hash", "hash_adds_instead_of_xor"},
      {"engram_fetch", "engram_scale_ignored"},
      {"engram_gate", "engram_gate_sign_lost"},
  };
  for (const auto& [op, name] : faults) {
    CAPTURE(op);
    CAPTURE(name);
    ConformanceOptions options;
    options.op_patterns = {op};
    const ScopedFault fault(name);
    const ConformanceReport report = run({on_target(available_targets().front())}, options);
    CHECK(report.exit_code() == ExitCode::kMismatch);
  }
}
#endif

TEST_CASE("what must throw and does not is noticed, and what must not and does") {
  const OpCase* throwing = nullptr;
  for (const OpCase& one : all_cases()) {
    if (one.op == "topk_select" && one.name == "NaN in row 2") throwing = &one;
  }
  REQUIRE(throwing != nullptr);
  const Implementation swallows = {"swallows", [](const std::function<Tensors()>& op) -> Tensors {
                                     try {
                                       return op();
                                     } catch (const c10::Error&) {
                                       return {};
                                     }
                                   }};
  ConformanceReport report = run({swallows}, one_case(*throwing));
  REQUIRE(report.failures.size() == 1);
  CHECK(report.failures[0].kind == "did not throw");

  const Implementation mumbles = {"mumbles", [](const std::function<Tensors()>& op) -> Tensors {
                                    try {
                                      return op();
                                    } catch (const c10::Error&) {
                                      throw std::runtime_error("topk_select: something is NaN");
                                    }
                                  }};
  report = run({mumbles}, one_case(*throwing));
  REQUIRE(report.failures.size() == 1);
  CHECK(report.failures[0].kind == "wrong message");
  CHECK(report.failures[0].detail.find("something is NaN") != std::string::npos);

  const Implementation throws = {"throws", [](const std::function<Tensors()>&) -> Tensors {
                                   throw std::runtime_error("no such kernel");
                                 }};
  report = run({throws}, one_case(*judged_cases("linear").front()));
  REQUIRE(report.failures.size() == 1);
  CHECK(report.failures[0].kind == "threw");
  CHECK(report.failures[0].detail == "no such kernel");
}

TEST_CASE("wrong shapes, dtypes and numbers of outputs are noticed") {
  const OpCase& one = *judged_cases("linear").at(3);
  const auto kind_of = [&](const Spoil& spoil) {
    const ConformanceReport report =
        run({on_target(available_targets().front(), spoil)}, one_case(one));
    return report.failures.empty() ? "none" : report.failures[0].kind;
  };
  CHECK(kind_of({}) == "none");
  CHECK(kind_of([](Tensors& outputs) { outputs[0] = outputs[0].to(at::kDouble); }) ==
        "wrong shape or dtype");
  CHECK(kind_of([](Tensors& outputs) { outputs[0] = outputs[0].unsqueeze(0); }) ==
        "wrong shape or dtype");
  CHECK(kind_of([](Tensors& outputs) { outputs.clear(); }) == "wrong number of outputs");
}

TEST_CASE("the report of a failure: what, where, both values, how to repeat it; in JSON too") {
  const OpCase& one = *judged_cases("topk_select").front();
  const Spoil spoil = [](Tensors& outputs) { move_bits(outputs[0], 3, 1); };
  const ConformanceReport report =
      run({on_target(Target::kScalar), on_target(Target::kScalar, spoil)}, one_case(one));
  std::ostringstream text;
  write_text(report, /*detail=*/true, plain_style(), text);
  for (const char* part :
       {"\nFAILED topk_select case 0 (", "not exact, canonical/scalar, indices [0, 3]",
        "targets differ, canonical/scalar, indices [0, 3]", "\n  expected 0x0", ", found 0x0",
        "\n  repeat with: deepinfer-sim ops --op topk_select --case 0 --seed 1\n", "2 failures"}) {
    CAPTURE(part);
    CHECK(text.str().find(part) != std::string::npos);
  }
  const auto json = nlohmann::json::parse(report_json(report, /*detail=*/false));
  CHECK(json.at("exit_code") == 1);
  CHECK(json.at("cases").is_null());
  REQUIRE(json.at("failures").size() == 2);
  const auto& failure = json.at("failures").at(0);
  CHECK(failure.at("kind") == "not exact");
  CHECK(failure.at("element") == nlohmann::json({0, 3}));
  CHECK(failure.at("replay") == "deepinfer-sim ops --op topk_select --case 0 --seed 1");
  CHECK(json.at("ops").at(0).at("failures") == 2);
}

TEST_CASE("digests: by seed, by case, and the same alone as in the whole run") {
  const std::vector<Implementation> fastest = {on_target(available_targets().front())};
  ConformanceOptions options;
  options.op_patterns = {"rms_norm", "topk*", "moe_gate"};
  const ConformanceReport first = run(fastest, options);
  CHECK(run(fastest, options).digest == first.digest);
  CHECK(run({on_target(Target::kScalar)}, options).digest == first.digest);
  options.seed = 2;
  CHECK(run(fastest, options).digest != first.digest);

  std::set<uint64_t> different;
  for (const CaseResult& one : first.cases) {
    if (!one.must_throw) different.insert(one.digest);
  }
  CHECK(different.size() * 10 >= first.cases.size() * 8);  // a few are empty
  for (const char* op : {"rms_norm", "topk_select", "moe_gate"}) {
    for (const int64_t number : {0, 7, 19}) {
      CAPTURE(op);
      CAPTURE(number);
      ConformanceOptions alone;
      alone.op_patterns = {op};
      alone.case_number = number;
      const ConformanceReport replayed = run(fastest, alone);
      REQUIRE(replayed.cases.size() == 1);
      const auto whole =
          std::find_if(first.cases.begin(), first.cases.end(),
                       [&](const CaseResult& one) { return one.op == op && one.number == number; });
      REQUIRE(whole != first.cases.end());
      CHECK(replayed.cases[0].digest == whole->digest);
    }
  }
}

TEST_CASE("NaN counts by its bits only where CANONICAL.md writes one pattern") {
  const float other_nan = std::bit_cast<float>(0x7FC00001u);
  const Tensor canonical = at::full({2}, std::numeric_limits<double>::quiet_NaN(), at::kFloat);
  Tensor other = canonical.clone();
  other.data_ptr<float>()[1] = other_nan;
  CHECK(tensor_digest(canonical, false, 1) == tensor_digest(other, false, 1));
  CHECK(tensor_digest(canonical, true, 1) != tensor_digest(other, true, 1));
}

TEST_CASE("what chooses nothing is an error, and what compares nothing is vacuous") {
  ConformanceOptions options;
  options.op_patterns = {"rms_nrm"};
  try {
    chosen_cases(options);
    CHECK(false);
  } catch (const ConfigError& error) {
    CHECK(error.parts().remedy == "did you mean rms_norm?");
  }
  options.op_patterns = {"rms_norm"};
  options.case_number = 100000;
  CHECK_THROWS_AS(chosen_cases(options), ConfigError);

  for (const OpCase* one : judged_cases("rms_norm")) {
    if (one->name.find("[0, 16]") == std::string::npos) continue;
    const ConformanceReport report = run(all_targets(), one_case(*one));
    CHECK(report.failures.empty());
    CHECK(report.exit_code() == ExitCode::kVacuous);
    return;
  }
  CHECK(false);
}

TEST_CASE("TargetScope: the innermost, on its own thread, only targets that there are") {
  const Target usual = best_target();
  {
    const TargetScope scalar(Target::kScalar);
    CHECK(best_target() == Target::kScalar);
    CHECK(best_vector_target() == Target::kScalar);
    Target elsewhere = Target::kScalar;
    std::thread([&] { elsewhere = best_target(); }).join();
    CHECK(elsewhere == usual);
    for (const Target target : available_targets()) {
      const TargetScope inner(target);
      CHECK(best_target() == target);
      CHECK(best_vector_target() == vector_target(target));
    }
    CHECK(best_target() == Target::kScalar);
  }
  CHECK(best_target() == usual);
  for (const Target target :
       {Target::kAmx, Target::kAvx512, Target::kAvx2, Target::kNeon, Target::kScalar}) {
    if (!is_available(target)) CHECK_THROWS_AS(TargetScope{target}, UnsupportedError);
  }
}

}  // namespace
}  // namespace deepinfer::conformance
