#include "tools/rank_options.h"

#include <charconv>
#include <sstream>

#include "platform/shard_map.h"

namespace deepinfer {
namespace {

// Numbers of ranks of `all`: every small one, odd ones and those of whole machines.
std::vector<int64_t> all_sizes() {
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size <= 16; ++size) sizes.push_back(size);
  for (const int64_t size : {18, 24, 32, 48, 63, 64}) sizes.push_back(size);
  return sizes;
}

std::vector<int64_t> parse_sizes(const std::string& text) {
  if (text == "all") return all_sizes();
  if (text == "pow2") return {1, 2, 4, 8, 16, 32, 64};
  std::vector<int64_t> sizes;
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    int64_t size = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), size);
    if (error != std::errc() || end != item.data() + item.size() || size < 1) {
      throw ConfigError({.what = "a list of sizes that cannot be read",
                         .where = "--sizes",
                         .expected = "all, pow2, or numbers of ranks such as 1,2,18,64",
                         .found = "'" + item + "' in '" + text + "'"});
    }
    sizes.push_back(size);
  }
  return sizes;
}

}  // namespace

bool RankOptions::given() const {
  return tensor || context || expert || schedule || !replicated.empty() || !executor.empty() ||
         workers > 0;
}

ParallelSizes RankOptions::mesh() const {
  return {tensor.value_or(1), context.value_or(1), expert.value_or(1)};
}

ModelRunner RankOptions::runner(const ParallelSizes& sizes, ReplicaMode mode) const {
  RankRun run;
  run.sizes = sizes;
  run.replicated = replicated.empty() ? mode : parse_replica_mode(replicated);
  if (!executor.empty()) run.executor.kind = parse_executor(executor);
  run.executor.schedule = schedule;
  run.executor.workers = workers;
  if (schedule && workers == 0) run.executor.workers = 1;  // what replays one order
  return make_rank_runner(run);
}

std::vector<ParallelSizes> RankOptions::meshes(const std::string& default_sizes) const {
  const std::string list = sizes.empty() ? default_sizes : sizes;
  std::vector<ParallelSizes> found = meshes_of(parse_sizes(list), tensor, context, expert);
  if (!found.empty()) return found;
  throw ConfigError(
      {.what = "no mesh has one of these numbers of ranks",
       .where = "--sizes " + list + " with " + mesh().text(),
       .expected = "the least common multiple of tp * cp and ep among the sizes, each "
                   "axis at most " +
                   std::to_string(kCanonicalLeaves),
       .remedy = "give other sizes, or fewer of --tp, --cp and --ep"});
}

void add_rank_options(CLI::App& app, RankOptions& options) {
  const auto add_axis = [&](const char* name, std::optional<int64_t>& value, const char* what) {
    app.add_option(name, value, what)
        ->type_name("N")
        ->check(CLI::Range(int64_t{1}, kCanonicalLeaves));
  };
  add_axis("--tp", options.tensor,
           "Tensor-parallel ranks: heads, shared-expert columns, vocabulary");
  add_axis("--cp", options.context, "Context-parallel ranks: KV and index keys by tile");
  add_axis("--ep", options.expert, "Expert-parallel ranks: routed experts");
  app.add_option("--sizes", options.sizes,
                 "Every mesh with one of these numbers of ranks, as a table; axes that are given "
                 "stay fixed")
      ->type_name("all|pow2|LIST");
  app.add_option("--schedule", options.schedule,
                 "Seed of the order in which ranks run (one worker): the same seed replays it")
      ->type_name("SEED");
  app.add_option("--replicated", options.replicated,
                 "What several ranks compute alike: every (each does, results compared by hash) or "
                 "once (one does for all)")
      ->type_name("every|once");
  app.add_option("--executor", options.executor, "fibers (the default), or threads: one a rank")
      ->type_name("NAME");
  app.add_option("--workers", options.workers, "Threads that fibers run on (default: one a core)")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
}

}  // namespace deepinfer
