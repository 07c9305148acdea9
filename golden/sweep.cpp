#include "golden/sweep.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "platform/hash.h"
#include "platform/process_memory.h"

namespace deepinfer {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// One prompt of a batch.
struct Lane {
  const GoldenPrompt* prompt = nullptr;
  SequencePtr sequence;
  size_t step = 0;  // generated so far
  SweepPrompt result;

  bool done() const { return step == prompt->generated.size(); }
  void take(const at::Tensor& logits) {  // fp32 [1, vocab]
    const at::Tensor row = logits.contiguous();
    result.hash = hash_bytes(row.data_ptr(), row.nbytes(), result.hash);
    const bool counted = step < static_cast<size_t>(kCountedTokens);
    // Logits that are not finite choose no token.
    const bool finite = at::isfinite(row).all().item<bool>();
    if (counted && finite && greedy_tokens(row)[0].item<int64_t>() == prompt->generated[step]) {
      ++result.matched;
    }
    ++step;
  }
};

// Runs `body` and notes what it took.
void measure(SweepRow& row, const std::function<void()>& body) {
  const bool has_peak = reset_peak_resident();
  const auto start = Clock::now();
  body();
  row.seconds = seconds_since(start);
  if (has_peak) row.peak_bytes = peak_resident_bytes();
}

}  // namespace

uint64_t SweepRow::hash() const {
  uint64_t hash = 0;
  for (const SweepPrompt& prompt : prompts) hash = hash_bytes(&prompt.hash, sizeof hash, hash);
  return hash;
}

bool SweepSuite::all_same() const {
  return std::all_of(rows.begin(), rows.end(), [](const SweepRow& row) { return row.same; });
}

int64_t SweepReport::runs() const {
  int64_t runs = 0;
  for (const SweepSuite& suite : suites) runs += static_cast<int64_t>(suite.rows.size());
  return runs;
}

bool SweepReport::all_same() const {
  return std::all_of(suites.begin(), suites.end(),
                     [](const SweepSuite& suite) { return suite.all_same(); });
}

int64_t SweepReport::rows_below_nine() const {
  int64_t rows = 0;
  for (const SweepSuite& suite : suites) {
    if (!suite.suite.gates.tokens) continue;
    for (const SweepRow& row : suite.rows) {
      rows += std::any_of(row.prompts.begin(), row.prompts.end(),
                          [](const SweepPrompt& p) { return p.matched < kCountedTokens; });
    }
  }
  return rows;
}

ExitCode SweepReport::exit_code() const {
  return all_same() && rows_below_nine() == 0 ? ExitCode::kMatch : ExitCode::kMismatch;
}

std::vector<SweepPrompt> generate_together(const TextModel& model,
                                           const std::vector<const GoldenPrompt*>& prompts) {
  std::vector<Lane> lanes;
  for (const GoldenPrompt* prompt : prompts) {
    Lane& lane = lanes.emplace_back();
    lane.prompt = prompt;
    lane.sequence =
        model.new_sequence(static_cast<int64_t>(prompt->tokens.size() + prompt->generated.size()));
  }
  for (;;) {
    std::vector<Chunk> batch;
    std::vector<Lane*> running;
    for (Lane& lane : lanes) {
      if (lane.done()) continue;
      running.push_back(&lane);
      batch.push_back(
          {lane.sequence.get(), lane.step == 0
                                    ? lane.prompt->tokens
                                    : std::vector<int64_t>{lane.prompt->generated[lane.step - 1]}});
    }
    if (batch.empty()) break;
    const at::Tensor logits = model.forward(batch);
    for (size_t i = 0; i < running.size(); ++i) {
      running[i]->take(logits.narrow(0, static_cast<int64_t>(i), 1));
    }
  }
  std::vector<SweepPrompt> results;
  for (const Lane& lane : lanes) results.push_back(lane.result);
  return results;
}

SweepReport run_sweep(const std::vector<Suite>& suites, const SweepOptions& options) {
  const std::vector<PlannedSuite> planned = plan_suites(suites, options.selection);
  SweepReport report;
  const auto start = Clock::now();
  for (const PlannedSuite& plan : planned) {
    SweepSuite& suite = report.suites.emplace_back();
    suite.suite = plan.suite;
    for (const GoldenPrompt* prompt : plan.prompts) suite.prompts.push_back(prompt->name);
    const auto model = options.load(plan.suite.model, plan.suite.numerics);
    if (options.progress) options.progress(plan.suite.name + ", one rank");
    measure(suite.alone, [&] {
      for (const GoldenPrompt* prompt : plan.prompts) {
        suite.alone.prompts.push_back(generate_together(*model, {prompt})[0]);
      }
    });
    suite.alone.same = true;
    for (const ParallelSizes& sizes : options.meshes) {
      if (options.progress) options.progress(plan.suite.name + ", " + sizes.text());
      SweepRow& row = suite.rows.emplace_back();
      row.sizes = sizes;
      measure(row, [&] {
        options.runner(sizes)(*model, nullptr, [&](const TextModel& running) {
          row.prompts = generate_together(running, plan.prompts);
        });
      });
      row.same = std::equal(row.prompts.begin(), row.prompts.end(), suite.alone.prompts.begin(),
                            suite.alone.prompts.end(), [](const auto& a, const auto& b) {
                              return a.hash == b.hash && a.matched == b.matched;
                            });
    }
  }
  report.seconds = seconds_since(start);
  return report;
}

std::vector<ParallelSizes> meshes_of(const std::vector<int64_t>& ranks,
                                     std::optional<int64_t> tensor, std::optional<int64_t> context,
                                     std::optional<int64_t> expert) {
  const std::set<int64_t> wanted(ranks.begin(), ranks.end());
  std::vector<ParallelSizes> meshes;
  for (const int64_t world : wanted) {
    const auto allows = [&](std::optional<int64_t> fixed, int64_t size) {
      return world % size == 0 && size <= kCanonicalLeaves && (!fixed || *fixed == size);
    };
    for (int64_t tp = 1; tp <= world; ++tp) {
      for (int64_t cp = 1; cp <= world; ++cp) {
        for (int64_t ep = 1; ep <= world; ++ep) {
          const ParallelSizes sizes = {tp, cp, ep};
          if (allows(tensor, tp) && allows(context, cp) && allows(expert, ep) &&
              sizes.ranks() == world) {
            meshes.push_back(sizes);
          }
        }
      }
    }
  }
  return meshes;
}

}  // namespace deepinfer
