#!/usr/bin/env bash
# Set-up, build, and all tests. Arguments go to ctest, for example: tools/test.sh -L unit
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/setup.sh
cmake --preset test -DCMAKE_PREFIX_PATH="$(cat build/torch-prefix)"
cmake --build --preset test
exec ctest --preset test --parallel "$(nproc)" "$@"
