#!/usr/bin/env bash
# Installs what the build needs and is missing, and decides which libtorch to build against.
set -euo pipefail

usage() {
  cat <<'TEXT'
tools/setup.sh [--torch auto|python|system|venv] [--prefix-file FILE] [--extra PACKAGE...]

Installs missing build dependencies with the system's package manager. Does nothing, and needs no network,
when nothing is missing. Then writes what to pass to CMake as CMAKE_PREFIX_PATH to FILE (build/torch-prefix).

  --torch auto     the torch of the active Python if it is 2.0 or newer, else the system's libtorch, else a
                   torch that pip installs into build/torch-venv (the default)
  --torch python   only the torch of the active Python
  --torch system   only the system's libtorch
  --torch venv     only a torch in build/torch-venv
  --extra          further packages of the package manager, such as clang or clang-format
TEXT
}

readonly cmake_minimum=3.22
readonly torch_minimum=2.0   # of a Python package; the system's libtorch may be 1.13
readonly torch_for_venv=2.13.0

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
torch_choice=auto
prefix_file=$root/build/torch-prefix
extra=()
while (($# > 0)); do
  case $1 in
    --torch) torch_choice=${2:?--torch needs a value}; shift 2 ;;
    --prefix-file) prefix_file=${2:?--prefix-file needs a value}; shift 2 ;;
    --extra) shift; extra=("$@"); break ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; echo "error: unknown argument $1" >&2; exit 2 ;;
  esac
done
case $torch_choice in
  auto | python | system | venv) ;;
  *) echo "error: --torch takes auto, python, system or venv, not $torch_choice" >&2; exit 2 ;;
esac

say() { echo "setup: $*" >&2; }
fail() { echo "error: $*" >&2; exit 2; }

# True if version $1 is at least $2.
at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }

# --- what is missing ---

have_command() { command -v "$1" > /dev/null 2>&1; }
have_cmake() {
  have_command cmake && at_least "$(cmake --version | sed -n 's/^cmake version \([0-9.]*\).*/\1/p')" \
    "$cmake_minimum"
}
have_header() { echo "#include <$1>" | c++ -std=c++20 -E -x c++ - > /dev/null 2>&1; }
have_cxx20() { have_command c++ && have_header span; }
have_system_torch() { have_header torch/csrc/api/include/torch/version.h; }
have_openblas() { PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2> /dev/null | grep 'libopenblas' > /dev/null; }

# Packages (names of Debian and Ubuntu) whose content is not there.
missing_packages() {
  have_cmake || echo cmake
  have_command ninja || echo ninja-build
  have_cxx20 || echo g++
  have_command ccache || echo ccache
  have_header yaml-cpp/yaml.h || echo libyaml-cpp-dev
  have_header nlohmann/json.hpp || echo nlohmann-json3-dev
  have_header CLI/CLI.hpp || echo libcli11-dev
  have_header doctest/doctest.h || echo doctest-dev
  have_header hwy/highway.h || echo libhwy-dev
  have_header Random123/philox.h || echo librandom123-dev
  have_header boost/context/fiber.hpp || echo libboost-context-dev
  local package
  for package in "${extra[@]+"${extra[@]}"}"; do
    have_command "$package" || echo "$package"
  done
}

install_packages() {
  (($# > 0)) || return 0
  if ! have_command apt-get; then
    fail "these packages are missing: $*
  There is no apt-get here to install them with. Install what they hold with this system's package manager
  (the names are Debian's), then run this script again."
  fi
  local sudo=()
  if ((EUID != 0)); then
    have_command sudo || fail "these packages are missing: $*
  Installing them takes root: run as root, or install sudo, or have someone run
    apt-get install $*"
    sudo=(sudo)
  fi
  say "installing $*"
  # Talk belongs on standard error. An unreachable third-party source must not stop the others.
  "${sudo[@]+"${sudo[@]}"}" apt-get update -qq >&2 || say "apt-get update failed; trying with the lists as they are"
  "${sudo[@]+"${sudo[@]}"}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "$@" >&2 ||
    fail "apt-get could not install: $*"
}

# --- which libtorch ---

# Prints "VERSION PREFIX" of a Python's torch without importing it, which would take seconds; or "- REASON".
python_torch() {
  "$1" - "$torch_minimum" <<'PYTHON' 2> /dev/null || echo "- it does not run"
import importlib.util, os, re, shutil, sys

spec = importlib.util.find_spec("torch")
if spec is None or not spec.origin:
    sys.exit(print("- it has no torch"))
folder = os.path.dirname(spec.origin)
about = open(os.path.join(folder, "version.py")).read()
version = re.search(r"__version__ = '([^']+)'", about).group(1)
cuda = re.search(r"^cuda[^=\n]*= '", about, re.M)
config = os.path.join(folder, "share", "cmake", "Torch", "TorchConfig.cmake")
if tuple(map(int, version.split(".")[:2])) < tuple(map(int, sys.argv[1].split("."))):
    print(f"- its torch {version} is older than {sys.argv[1]}")
elif not os.path.exists(config):
    print(f"- its torch {version} has no CMake files")
elif "_GLIBCXX_USE_CXX11_ABI=0" in open(config).read():
    print(f"- its torch {version} has the C++ ABI from before 2015, the system's libraries have not")
elif cuda and not (shutil.which("nvcc") or os.environ.get("CUDA_HOME")):
    print(f"- its torch {version} is built for CUDA, and its CMake files need a CUDA toolkit")
else:
    print(version, os.path.dirname(os.path.dirname(config)))
PYTHON
}

# Sets torch_prefix and torch_name, or torch_reason and returns 1.
use_python() {
  local python found
  for python in python3 python; do
    have_command "$python" || continue
    found=$(python_torch "$python")
    if [[ $found != "- "* ]]; then
      torch_prefix=${found#* }
      torch_name="libtorch ${found%% *} of the active Python"
      return 0
    fi
    torch_reason="the active Python cannot be used: ${found#- }"
    return 1
  done
  torch_reason="there is no Python"
  return 1
}

use_system() {
  local wanted=()
  if ! have_system_torch; then
    if ! have_command apt-cache || ! apt-cache show libtorch-dev > /dev/null 2>&1; then
      # The lists may be empty on a fresh machine.
      if have_command apt-get && ((EUID == 0)); then apt-get update -qq >&2 || true; fi
      if ! have_command apt-cache || ! apt-cache show libtorch-dev > /dev/null 2>&1; then
        torch_reason="the system's package manager has no libtorch-dev"
        return 1
      fi
    fi
    wanted+=(libtorch-dev)
  fi
  # The reference BLAS that libtorch would otherwise use is many times slower.
  have_openblas || wanted+=(libopenblas0-pthread)
  install_packages "${wanted[@]+"${wanted[@]}"}"
  have_system_torch || fail "libtorch-dev is installed, but its headers cannot be found"
  torch_prefix=
  torch_name="libtorch $(system_torch_version) of the system"
}

system_torch_version() {
  printf '#include <torch/csrc/api/include/torch/version.h>\n#ifdef TORCH_VERSION\nfound TORCH_VERSION\n#endif\n' |
    c++ -E -P -x c++ - 2> /dev/null | sed -n 's/^found "\(.*\)"/\1/p'
}

use_venv() {
  local venv=$root/build/torch-venv found
  found="- none"
  if [[ -x $venv/bin/python ]]; then found=$(python_torch "$venv/bin/python"); fi
  if [[ $found == "- "* ]]; then
    if ! have_command python3; then torch_reason="there is no python3"; return 1; fi
    say "installing torch $torch_for_venv with pip into build/torch-venv"
    mkdir -p "$root/build"
    if ! python3 -m venv "$venv" >&2 || ! "$venv/bin/python" -m pip install -q "torch==$torch_for_venv" >&2; then
      torch_reason="pip could not install torch $torch_for_venv"
      return 1
    fi
    found=$(python_torch "$venv/bin/python")
    if [[ $found == "- "* ]]; then
      torch_reason="build/torch-venv cannot be used: ${found#- }"
      return 1
    fi
  fi
  torch_prefix=${found#* }
  torch_name="libtorch ${found%% *} in build/torch-venv"
}

# --- the work ---

mapfile -t missing < <(missing_packages)
install_packages "${missing[@]+"${missing[@]}"}"
have_cxx20 || fail "the C++ compiler ($(c++ --version | head -n 1)) has no C++20 library; gcc 12 or newer has"
have_cmake || fail "cmake $(cmake --version | sed -n 's/^cmake version //p') is too old: $cmake_minimum or newer is needed
  Newer ones come with: pip install cmake"

torch_reason=
case $torch_choice in
  python) use_python || fail "$torch_reason" ;;
  system) use_system || fail "$torch_reason" ;;
  venv) use_venv || fail "$torch_reason" ;;
  auto)
    use_python || { say "$torch_reason"; use_system; } || { say "$torch_reason"; use_venv; } ||
      fail "$torch_reason
  Activate a Python with torch $torch_minimum or newer, or install libtorch 1.13 or newer."
    ;;
esac
say "building against $torch_name${torch_prefix:+ ($torch_prefix)}"

mkdir -p "$(dirname "$prefix_file")"
if [[ ! -e $prefix_file || $(cat "$prefix_file") != "$torch_prefix" ]]; then
  if [[ -e $prefix_file ]]; then
    say "another libtorch than last time: the build folders are configured anew"
    rm -f "$root"/build/*/CMakeCache.txt
  fi
  printf '%s\n' "$torch_prefix" > "$prefix_file"
fi
