// What a terminal changes: colour where it is wanted, nothing anywhere else.
#pragma once

#include <string>
#include <string_view>

namespace deepinfer {

// True if colour may be written to a file descriptor: it is a terminal, NO_COLOR is unset or empty
// (no-color.org), and TERM is not "dumb".
bool colour_wanted(int file_descriptor);

// Wraps text in ANSI colours, or returns it unchanged.
class Paint {
 public:
  explicit Paint(int file_descriptor) : on_(colour_wanted(file_descriptor)) {}
  std::string red(std::string_view text) const { return wrap("31", text); }
  std::string green(std::string_view text) const { return wrap("32", text); }
  std::string yellow(std::string_view text) const { return wrap("33", text); }
  std::string bold(std::string_view text) const { return wrap("1", text); }
  std::string dim(std::string_view text) const { return wrap("2", text); }

 private:
  std::string wrap(std::string_view code, std::string_view text) const {
    if (!on_) return std::string(text);
    return "\x1b[" + std::string(code) + "m" + std::string(text) + "\x1b[0m";
  }
  bool on_;
};

// One line on standard error that says what is being done; nothing where that is no terminal.
class Progress {
 public:
  Progress();
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(std::string_view line) const;
  void clear() const { show({}); }

 private:
  bool live_;
};

}  // namespace deepinfer
