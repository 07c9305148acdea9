// Which paths of the model a run exercised: the vacuity guard's evidence.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {

// Paths that a check can claim. A claimed path with a count of 0 makes the check vacuous.
enum class Path {
  kWindowCrossed,   // queries whose window no longer reached position 0
  kGroupClosed,     // ratio-2 groups that closed
  kGroupLeftOpen,   // forwards that ended with an open ratio-2 group
  kTopkDropped,     // queries that saw more compressed entries than top-k keeps
  kCandidatesCut,   // queries whose candidate filter dropped a visible block
  kEveryExpertHit,  // layers in which each routed expert was chosen at least once
  kClampSeen,       // swiglu inputs that a clamp changed
  kYarnRange,      // rotations at position > 0 by a table with kept, blended and scaled frequencies
  kEngramHistory,  // n-grams that reached tokens of an earlier forward
  kPromptChunked,  // prompt tokens run in a forward after the prompt's first
  kDecoded,        // one-token forwards after the prompt
};

struct PathInfo {
  Path path;
  std::string_view name;  // as written in YAML: "window_crossed", ...
  std::string_view what;
};
const std::vector<PathInfo>& all_paths();
// Throws ConfigError that names the nearest known path.
Path parse_path(std::string_view name);

// Counters of one run. Not thread-safe: one a rank.
class Coverage {
 public:
  void add(Path path, int64_t count = 1) { counts_[path] += count; }
  int64_t count(Path path) const;
  // Adds hits[e] choices of routed expert e in `layer`; keeps kEveryExpertHit up to date.
  void add_expert_hits(int64_t layer, const std::vector<int64_t>& hits);
  // Layer -> hits by expert.
  const std::map<int64_t, std::vector<int64_t>>& expert_hits() const { return expert_hits_; }
  void merge(const Coverage& other);

 private:
  std::map<Path, int64_t> counts_;
  std::map<int64_t, std::vector<int64_t>> expert_hits_;
};

}  // namespace deepinfer
