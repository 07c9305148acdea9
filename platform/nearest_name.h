// Finds the known name that a misspelt one most likely meant, for every "unknown X" message.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {

// Number of inserted, deleted, replaced or swapped neighbouring characters that turns one name into
// the other (optimal string alignment). Upper and lower case count as equal.
size_t edit_distance(std::string_view a, std::string_view b);

// The candidate with the smallest edit distance to `name`, the first of equals; empty without
// candidates.
std::string nearest_name(std::string_view name, const std::vector<std::string_view>& candidates);

// The same for any range of string-like values.
template <typename Range>
std::string nearest_name(std::string_view name, const Range& candidates) {
  return nearest_name(name,
                      std::vector<std::string_view>(std::begin(candidates), std::end(candidates)));
}
inline std::string nearest_name(std::string_view name,
                                std::initializer_list<std::string_view> candidates) {
  return nearest_name(name, std::vector<std::string_view>(candidates));
}

// Remedy text: "did you mean NAME?"; empty without candidates.
template <typename Range>
std::string did_you_mean(std::string_view name, const Range& candidates) {
  const std::string nearest = nearest_name(name, candidates);
  return nearest.empty() ? nearest : "did you mean " + nearest + "?";
}

}  // namespace deepinfer
