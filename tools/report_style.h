// How reports look on a terminal.
#pragma once

#include <string_view>

#include <unistd.h>

#include "golden/text_table.h"
#include "tools/terminal.h"

namespace deepinfer {

// Coloured where standard output is a terminal that wants it.
inline TextStyle terminal_style() {
  const Paint paint(STDOUT_FILENO);
  return {[paint](std::string_view text) { return paint.green(text); },
          [paint](std::string_view text) { return paint.red(text); },
          [paint](std::string_view text) { return paint.dim(text); },
          [paint](std::string_view text) { return paint.bold(text); }};
}

}  // namespace deepinfer
