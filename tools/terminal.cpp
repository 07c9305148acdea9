// Asks the environment and the descriptor whether colour is wanted.
#include "tools/terminal.h"

#include <cstdlib>
#include <iostream>

#include <unistd.h>

namespace deepinfer {

bool colour_wanted(int file_descriptor) {
  const char* no_colour = std::getenv("NO_COLOR");
  if (no_colour != nullptr && *no_colour != '\0') return false;
  const char* terminal = std::getenv("TERM");
  if (terminal == nullptr || std::string_view(terminal) == "dumb") return false;
  return isatty(file_descriptor) == 1;
}

Progress::Progress() : live_(isatty(STDERR_FILENO) == 1) {}

void Progress::show(std::string_view line) const {
  if (live_) std::cerr << "\r\x1b[K" << line << std::flush;
}

}  // namespace deepinfer
