// The report of a run in which no rank can go on.
#include <sstream>

#include "sim/cluster/rendezvous.h"

namespace deepinfer::internal {
namespace {

std::string ranks_text(const std::vector<int64_t>& ranks) {
  std::ostringstream text;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    text << (i > 0 ? ", " : "") << ranks[i];
    if (end - i > 1) text << '-' << ranks[end - 1];
    i = end;
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text.str();
}

}  // namespace

CollectiveError Rendezvous::stuck_error() const {
  // Ranks of one state and text stand in one line.
  std::map<std::string, std::vector<int64_t>> lines;
  std::set<const Meeting*> waited_for;
  std::vector<int64_t> waiting;
  for (size_t i = 0; i < states_.size(); ++i) {
    const RankState& state = states_[i];
    const auto rank = static_cast<int64_t>(i);
    const Call* finished = state.finished();
    const std::string last = finished != nullptr
                                 ? "last finished " + call_text(record_of(*finished))
                                 : std::string("has finished no collective");
    if (state.ended) {
      lines["ended; " + last].push_back(rank);
      continue;
    }
    waiting.push_back(rank);
    lines["waits in " + call_text(record_of(state.current())) + "; " + last].push_back(rank);
    waited_for.insert(state.meeting);
  }
  std::ostringstream found;
  for (const auto& [text, ranks] : lines) found << "\n    " << ranks_text(ranks) << ": " << text;
  for (const Meeting* meeting : waited_for) {
    std::vector<int64_t> missing;
    const Call* call = nullptr;
    for (size_t i = 0; i < meeting->members.size(); ++i) {
      const RankState& member = states_[static_cast<size_t>(meeting->members[i])];
      if (member.meeting == meeting) {
        call = &member.current();
      } else {
        missing.push_back(meeting->members[i]);
      }
    }
    found << "\n    " << ranks_text(missing) << " never came to " << call_text(record_of(*call));
    // The same ranks in other groups: a list that differs, not a call that is missing.
    for (const int64_t rank : missing) {
      const RankState& other = states_[static_cast<size_t>(rank)];
      if (other.ended || other.current().op != call->op ||
          *other.current().groups == *call->groups) {
        continue;
      }
      found << "\n    replica group signature mismatch ... likely caused by mismatched collectives "
               "between peers: rank "
            << rank << " names " << replica_groups_text(*other.current().groups) << " at "
            << other.current().site.text();
      break;
    }
  }
  const CallRecord first = record_of(states_[static_cast<size_t>(waiting.front())].current());
  std::ostringstream what;
  what << "missing collectives status on " << ranks_text(waiting)
       << " - suspected hang in collectives operation " << first.sequence << ": no rank can go on, "
       << waiting.size() << " of " << states_.size() << " wait";
  return CollectiveError({.what = what.str(),
                          .where = call_text(first),
                          .found = found.str(),
                          .remedy =
                              "make every rank of a group run the same collectives: no branch "
                              "around one may depend on what a single rank knows"});
}

}  // namespace deepinfer::internal
