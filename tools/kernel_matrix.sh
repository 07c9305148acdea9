#!/usr/bin/env bash
# Builds the canonical kernels and their tests, which need no libtorch, with several compilers, and runs them.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'TEXT'
tools/kernel_matrix.sh [--qemu] [--jobs N] [CONFIGURATION...]

Shows that the canonical kernels give the same bits whatever compiled them: builds sim/kernels and its tests in
build/kernels/ and runs them, one line a configuration. Installs a compiler that is missing (tools/setup.sh).

  CONFIGURATION   gcc-O2, gcc-O3, clang-O2, clang-O3: of the kernels; aarch64-O2, aarch64-O3: NEON, cross-compiled
                  by gcc and run by qemu-user. The default is gcc-O2 clang-O2 clang-O3, as a release build is gcc-O3.
  --qemu          run aarch64-O3 (and aarch64-O2, if that is named) only; exit code 77 if its packages cannot be had
  --jobs N        compile and test N at a time (the number of processors)

Exit code: 0 all agree, 1 a build or a test failed, 2 wrong usage, 77 skipped.
TEXT
}

jobs=$(nproc)
configurations=()
qemu=false
while (($# > 0)); do
  case $1 in
    --qemu) qemu=true; shift ;;
    --jobs) jobs=${2:?--jobs needs a number}; shift 2 ;;
    gcc-O[23] | clang-O[23] | aarch64-O[23]) configurations+=("$1"); shift ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; echo "error: unknown argument $1" >&2; exit 2 ;;
  esac
done
if ((${#configurations[@]} == 0)); then
  if $qemu; then configurations=(aarch64-O3); else configurations=(gcc-O2 clang-O2 clang-O3); fi
fi

say() { echo "kernel_matrix: $*" >&2; }

# The compiler of a configuration is there, or can be installed.
have_tools() {
  case $1 in
    gcc) command -v g++ > /dev/null || tools/setup.sh ;;
    clang) command -v clang++ > /dev/null || tools/setup.sh --extra clang ;;
    aarch64)
      command -v aarch64-linux-gnu-g++ > /dev/null && command -v qemu-aarch64 > /dev/null ||
        tools/setup.sh --extra g++-aarch64-linux-gnu qemu-user
      ;;
  esac
}

# Of Highway the kernels use headers only; its library is the host's. So a package of that shape stands in for it.
write_highway_package() {
  mkdir -p "$1"
  cat > "$1/hwy-config.cmake" <<'CMAKE'
if(NOT TARGET hwy::hwy)
  add_library(hwy::hwy INTERFACE IMPORTED)
endif()
CMAKE
}

# The tests are compiled as in the test preset, so that ccache has them; only the kernels differ.
configure() {
  local compiler=$1 optimization=$2 folder=$3 arguments=()
  case $compiler in
    gcc) arguments=(-DCMAKE_CXX_COMPILER=g++) ;;
    clang) arguments=(-DCMAKE_CXX_COMPILER=clang++) ;;
    aarch64)
      write_highway_package "$folder/highway"
      arguments=(-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64
        -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ "-Dhwy_DIR=$PWD/$folder/highway"
        "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;/usr/aarch64-linux-gnu")
      ;;
  esac
  cmake --preset test -B "$folder" "${arguments[@]}" -DDEEPINFER_SIM_KERNEL_OPTIMIZATION="-$optimization" \
    -DDEEPINFER_SIM_TORCH=OFF -DDEEPINFER_SIM_INSTALL=OFF -DDEEPINFER_SIM_WERROR=ON
}

run_tests() {
  ctest --test-dir "$1" -R '^(gemm|gemm_fp32|kernel_.*)$' --no-tests=error --output-on-failure --parallel "$jobs"
}

# Runs one step of a configuration; what it says goes to a log, and to standard error if it fails.
step() {
  local name=$1 log=$2
  shift 2
  "$@" > "$log" 2>&1 && return
  cat "$log" >&2
  say "$name failed"
  return 1
}

failed=0
skipped=0
for configuration in "${configurations[@]}"; do
  compiler=${configuration%-*}
  optimization=${configuration#*-}
  folder=build/kernels/$compiler
  mkdir -p "$folder"
  log=$folder/$optimization.log
  if ! have_tools "$compiler" >&2; then
    say "the compiler or the emulator of $configuration cannot be had here"
    if [[ $compiler == aarch64 ]]; then
      printf '%-11s skipped\n' "$configuration"
      skipped=$((skipped + 1))
    else
      printf '%-11s FAILED: no compiler\n' "$configuration"
      failed=$((failed + 1))
    fi
    continue
  fi
  begin=$SECONDS
  word=
  step "configuring $configuration" "$log" configure "$compiler" "$optimization" "$folder" &&
    step "building $configuration" "$log" cmake --build "$folder" --parallel "$jobs" --target kernel_tests ||
    word="FAILED to build"
  built=$SECONDS
  if [[ -z $word ]]; then
    step "testing $configuration" "$log" run_tests "$folder" || word="FAILED"
    : "${word:=$(sed -n 's/^100% tests passed.* out of \([0-9]*\)$/\1 tests passed/p' "$log")}"
  fi
  [[ $word == FAILED* ]] && failed=$((failed + 1))
  printf '%-11s %s (build %d s, tests %d s)\n' "$configuration" "$word" $((built - begin)) $((SECONDS - built))
done
((failed == 0)) || exit 1
((skipped == 0)) || exit 77
