// Runs the built `deepinfer-sim` as a subprocess and collects what it did.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace deepinfer {

// Where a standard stream of the program goes.
enum class Stream {
  kCaptured,    // into ProgramResult, through a file
  kTerminal,    // into ProgramResult, through a pseudo-terminal
  kClosed,      // nowhere: the descriptor is closed
  kFull,        // /dev/full: every write fails
  kBrokenPipe,  // a pipe whose reader is gone
};

struct ProgramOptions {
  // Added to, or replaced in, an environment of PATH, LD_LIBRARY_PATH, sanitizer options and
  // TERM=xterm.
  std::map<std::string, std::string> environment;
  std::string working_directory;  // empty: this process's
  Stream out = Stream::kCaptured;
  Stream err = Stream::kCaptured;
};

struct ProgramResult {
  int exit_code = -1;  // -1 if a signal ended it
  int signal = 0;
  std::string out;
  std::string err;
};

ProgramResult run_program(const std::vector<std::string>& arguments,
                          const ProgramOptions& options = {});

}  // namespace deepinfer
