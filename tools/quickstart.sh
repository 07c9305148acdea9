#!/usr/bin/env bash
# Set-up, build, and the main job: the tiny models against their golden data. Arguments go to `check`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Standard output is for the result.
{
  tools/setup.sh
  cmake --preset release -DCMAKE_PREFIX_PATH="$(cat build/torch-prefix)"
  cmake --build --preset release
} >&2
exec build/release/tools/deepinfer-sim check "$@"
