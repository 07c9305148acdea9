#include "platform/replicas.h"

#include <algorithm>
#include <array>
#include <map>
#include <sstream>

#include "platform/nearest_name.h"

namespace deepinfer {
namespace {

constexpr std::array<std::string_view, 2> kModeNames = {"every", "once"};

std::string hex(uint64_t value) {
  std::ostringstream text;
  text << std::hex << value;
  return text.str();
}

}  // namespace

std::string_view replica_mode_name(ReplicaMode mode) {
  return kModeNames[static_cast<size_t>(mode)];
}

ReplicaMode parse_replica_mode(std::string_view name) {
  for (size_t i = 0; i < kModeNames.size(); ++i) {
    if (name == kModeNames[i]) return static_cast<ReplicaMode>(i);
  }
  throw ConfigError(
      {.what = "unknown way to compute what is replicated '" + std::string(name) + "'",
       .expected = "every or once",
       .remedy = did_you_mean(name, kModeNames)});
}

Replicas::Replicas(ReplicaMode mode, int64_t ranks, std::vector<ReplicaPartition> partitions)
    : mode_(mode),
      partitions_(std::move(partitions)),
      sets_(partitions_.size()),
      counters_(static_cast<size_t>(ranks)) {
  for (Counters& counters : counters_) {
    counters.compared.resize(partitions_.size());
    counters.shared.resize(partitions_.size());
  }
  for (size_t p = 0; p < partitions_.size(); ++p) {
    const std::vector<int64_t>& set_of_rank = partitions_[p].set_of_rank;
    DEEPINFER_ASSERT(static_cast<int64_t>(set_of_rank.size()) == ranks,
                     set_of_rank.size() << " of " << ranks << " ranks");
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const auto set = static_cast<size_t>(set_of_rank[static_cast<size_t>(rank)]);
      while (sets_[p].size() <= set) sets_[p].push_back(std::make_unique<Set>());
      sets_[p][set]->ranks.push_back(rank);
    }
  }
}

Replicas::Set& Replicas::set_of(int64_t rank, size_t partition) const {
  const int64_t set = partitions_[partition].set_of_rank[static_cast<size_t>(rank)];
  return *sets_[partition][static_cast<size_t>(set)];
}

int64_t Replicas::members(int64_t rank, size_t partition) const {
  return static_cast<int64_t>(set_of(rank, partition).ranks.size());
}

bool Replicas::is_first(int64_t rank, size_t partition) const {
  return set_of(rank, partition).ranks.front() == rank;
}

void Replicas::compare(int64_t rank, size_t partition, const char* what, uint64_t hash) {
  Set& set = set_of(rank, partition);
  const auto members = static_cast<int64_t>(set.ranks.size());
  const int64_t number = counters_[static_cast<size_t>(rank)].compared[partition]++;
  const std::scoped_lock lock(set.mutex);
  Comparison& comparison = set.comparisons.at(number);
  if (comparison.arrived++ == 0) {
    comparison.what = what;
    comparison.hash = hash;
    comparison.rank = rank;
  } else if (hash != comparison.hash) {
    comparison.others.emplace_back(rank, hash);
  }
  if (comparison.arrived < members) return;
  if (!comparison.others.empty()) fail(comparison, partition, set);
  set.comparisons.drop([&](const Comparison& oldest) { return oldest.arrived == members; });
}

void Replicas::fail(const Comparison& comparison, size_t partition, const Set& set) const {
  std::map<int64_t, uint64_t> hash_of;
  for (const int64_t rank : set.ranks) hash_of[rank] = comparison.hash;
  for (const auto& [rank, hash] : comparison.others) hash_of[rank] = hash;
  std::map<uint64_t, size_t> votes;
  for (const auto& [rank, hash] : hash_of) ++votes[hash];
  uint64_t expected = hash_of.begin()->second;
  for (const auto& [hash, count] : votes) {
    if (count > votes[expected]) expected = hash;
  }
  std::string differing;
  for (const auto& [rank, hash] : hash_of) {
    if (hash == expected) continue;
    differing += (differing.empty() ? "" : ", ") + std::to_string(rank);
  }
  const int64_t first = std::find_if(hash_of.begin(), hash_of.end(), [&](const auto& one) {
                          return one.second != expected;
                        })->first;
  throw CollectiveError(
      {.what = "rank " + std::to_string(first) + " computed something else than its replicas",
       .where = std::string(comparison.what) + ", ranks with " + partitions_[partition].name,
       .expected = "hash " + hex(expected) + " on all " + std::to_string(set.ranks.size()),
       .found = "hash " + hex(hash_of[first]) + " on rank " + std::to_string(first) +
                (votes[expected] + 1 == set.ranks.size() ? "" : "; differing ranks: " + differing),
       .remedy = "look for state that the rank does not share with the others: its caches, its "
                 "inputs, its random stream"});
}

Replicas::Taken Replicas::take(int64_t rank, size_t partition) {
  Taken taken;
  taken.set = &set_of(rank, partition);
  taken.number = counters_[static_cast<size_t>(rank)].shared[partition]++;
  Set& set = *taken.set;
  std::unique_lock lock(set.mutex);
  set.computed.wait(lock, [&] { return !set.shared.at(taken.number).computing; });
  Shared& shared = set.shared.at(taken.number);
  taken.result = shared.result;
  if (taken.result == nullptr) {
    shared.computing = true;
    return taken;
  }
  ++shared.taken;
  const auto members = static_cast<int64_t>(set.ranks.size());
  set.shared.drop([&](const Shared& oldest) { return oldest.taken == members; });
  return taken;
}

void Replicas::keep(const Taken& taken) {
  {
    const std::scoped_lock lock(taken.set->mutex);
    Shared& shared = taken.set->shared.at(taken.number);
    shared.result = taken.result;
    shared.computing = false;
    ++shared.taken;
  }
  taken.set->computed.notify_all();
}

void Replicas::give_up(const Taken& taken) {
  {
    const std::scoped_lock lock(taken.set->mutex);
    taken.set->shared.at(taken.number).computing = false;
  }
  taken.set->computed.notify_all();
}

}  // namespace deepinfer
