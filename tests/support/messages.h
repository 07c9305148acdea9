// Runs something that must throw, and returns the parts of its message.
#pragma once

#include "platform/errors.h"

namespace deepinfer::test {

// The parts of the CheckpointError that `run` throws; empty parts if it throws none.
template <typename Run>
ErrorParts checkpoint_error(Run&& run) {
  try {
    run();
  } catch (const CheckpointError& error) {
    return error.parts();
  }
  return {};
}

inline bool begins_with(const std::string& text, const std::string& start) {
  return text.compare(0, start.size(), start) == 0;
}
inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace deepinfer::test
