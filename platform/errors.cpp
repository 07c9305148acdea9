#include "platform/errors.h"

namespace deepinfer {

std::string format_error(const ErrorParts& parts) {
  std::string text = parts.what;
  const auto append = [&text](std::string_view label, const std::string& value) {
    if (value.empty()) return;
    text.append("\n  ").append(label).append(": ").append(value);
  };
  append("where", parts.where);
  append("expected", parts.expected);
  append("found", parts.found);
  append("to do", parts.remedy);
  return text;
}

namespace internal {

void assertion_failed(const char* condition, const char* file, int line,
                      const std::string& values) {
  std::ostringstream text;
  text << "bug in deepinfer-sim: " << file << ":" << line << ": " << condition << " is false ("
       << values << ")";
  throw std::logic_error(text.str());
}

}  // namespace internal
}  // namespace deepinfer
