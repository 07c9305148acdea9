// The names of the paths, and the sums that the vacuity guard reads.
#include "platform/coverage.h"

#include <algorithm>

#include "platform/errors.h"
#include "platform/nearest_name.h"

namespace deepinfer {

const std::vector<PathInfo>& all_paths() {
  static const std::vector<PathInfo> paths = {
      {Path::kWindowCrossed, "window_crossed", "queries whose window no longer reached position 0"},
      {Path::kGroupClosed, "group_closed", "ratio-2 groups that closed"},
      {Path::kGroupLeftOpen, "group_left_open", "forwards that ended with an open ratio-2 group"},
      {Path::kTopkDropped, "topk_dropped",
       "queries that saw more compressed entries than top-k keeps"},
      {Path::kCandidatesCut, "candidates_cut",
       "queries whose candidate filter dropped a visible block"},
      {Path::kEveryExpertHit, "every_expert_hit",
       "layers in which each routed expert was chosen at least once"},
      {Path::kClampSeen, "clamp_seen", "swiglu inputs that a clamp changed"},
      {Path::kYarnRange, "yarn_range",
       "rotations at position > 0 by a table with kept, blended and scaled frequencies"},
      {Path::kEngramHistory, "engram_history", "n-grams that reached tokens of an earlier forward"},
      {Path::kPromptChunked, "prompt_chunked",
       "prompt tokens run in a forward after the prompt's first"},
      {Path::kDecoded, "decoded", "one-token forwards after the prompt"},
  };
  return paths;
}

Path parse_path(std::string_view name) {
  std::vector<std::string_view> names;
  std::string list;
  for (const PathInfo& info : all_paths()) {
    if (info.name == name) return info.path;
    names.push_back(info.name);
    list += (list.empty() ? "" : ", ") + std::string(info.name);
  }
  throw ConfigError({.what = "unknown path",
                     .where = {},
                     .expected = "one of " + list,
                     .found = std::string(name),
                     .remedy = did_you_mean(name, names)});
}

int64_t Coverage::count(Path path) const {
  if (path == Path::kEveryExpertHit) {
    return std::count_if(expert_hits_.begin(), expert_hits_.end(), [](const auto& layer) {
      const std::vector<int64_t>& hits = layer.second;
      return !hits.empty() &&
             std::all_of(hits.begin(), hits.end(), [](int64_t n) { return n > 0; });
    });
  }
  const auto it = counts_.find(path);
  return it == counts_.end() ? 0 : it->second;
}

void Coverage::add_expert_hits(int64_t layer, const std::vector<int64_t>& hits) {
  std::vector<int64_t>& sum = expert_hits_[layer];
  if (sum.empty()) sum.resize(hits.size());
  DEEPINFER_ASSERT(sum.size() == hits.size(),
                   "layer " << layer << ": " << sum.size() << " experts, then " << hits.size());
  for (size_t e = 0; e < hits.size(); ++e) sum[e] += hits[e];
}

void Coverage::merge(const Coverage& other) {
  for (const auto& [path, count] : other.counts_) counts_[path] += count;
  for (const auto& [layer, hits] : other.expert_hits_) add_expert_hits(layer, hits);
}

}  // namespace deepinfer
