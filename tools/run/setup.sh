# Set-up: installs Debian packages if allowed, and Python wheels into .venv. Sets PYTHON (an interpreter with the
# packages of the tools), CMAKE and TORCH_DIR. If nothing is missing, set-up only tests a few files.

# header NAME: whether a header is in a folder that compilers search.
header() {
  local folder include_path="${CPLUS_INCLUDE_PATH:-}"
  for folder in /usr/include /usr/local/include ${include_path//:/ } ${CONDA_PREFIX:+"$CONDA_PREFIX/include"}; do
    [[ -e "$folder/$1" ]] && return 0
  done
  return 1
}

# library NAME: whether the loader finds a shared library.
library() { [[ "$({ ldconfig -p || /sbin/ldconfig -p; } 2>/dev/null)" == *"$1"* ]]; }

tool() { command -v "$1" >/dev/null 2>&1; }

# Prints the Debian packages that the build needs and this machine lacks.
missing_required_packages() {
  tool g++ || echo g++
  tool git || echo git
  tool mpicc || echo libopenmpi-dev
  tool mpirun || echo openmpi-bin
  header nlohmann/json.hpp || echo nlohmann-json3-dev
  header CLI/CLI.hpp || echo libcli11-dev
  header fmt/format.h || echo libfmt-dev
  header xxhash.h || library libxxhash.so.0 || echo libxxhash-dev
  header gtest/gtest.h || echo libgtest-dev
  header gmock/gmock.h || echo libgmock-dev
  tool python3 || echo python3
}

# Prints missing packages that only some commands use. Each of these commands has an alternative or prints a clear
# message.
missing_optional_packages() {
  header xxhash.h || echo libxxhash-dev
  header benchmark/benchmark.h || echo libbenchmark-dev
  tool ccache || echo ccache
  tool ninja || echo ninja-build
  tool cmake || echo cmake
  tool clang-tidy || echo clang-tidy
  [[ -e /usr/share/dictd/gcide.dict.dz ]] || echo dict-gcide
  [[ -e .venv/bin/python ]] || /usr/bin/env python3 -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
}

# apt_get ARGS: runs as root or with sudo without a password; returns 1 if neither is possible.
apt_get() {
  tool apt-get || return 1
  if [[ "$(id -u)" == 0 ]]; then
    DEBIAN_FRONTEND=noninteractive apt-get "$@"
  elif tool sudo && sudo -n true 2>/dev/null; then
    sudo -n env DEBIAN_FRONTEND=noninteractive apt-get "$@"
  else
    return 1
  fi
}

# install_packages NAME...: installs all packages at once. If that fails, it installs them one by one, so that one
# unknown name does not block the others.
install_packages() {
  local log=.cache/apt.log name
  [[ $# -gt 0 ]] || return 0
  say "installing Debian packages: $* (log: $log)"
  if apt_get update >"$log" 2>&1 && apt_install "$@"; then return; fi
  for name in "$@"; do
    apt_install "$name" || say "could not install $name: $(apt_failure)"
  done
}

apt_install() { apt_get -o DPkg::Lock::Timeout=120 install -y --no-install-recommends "$@" >>.cache/apt.log 2>&1; }

apt_failure() { grep -E '^E:' .cache/apt.log | tail -n1 || echo "no root, and no sudo without a password"; }

# Optional packages are tried once per checkout. The stamp stores the packages that were still missing afterwards.
setup_packages() {
  local required optional stamp=.cache/optional-packages-missing
  required="$(missing_required_packages | xargs)"
  optional="$(missing_optional_packages | xargs)"
  if [[ -z "$required" && -n "$optional" && -e "$stamp" && "$(cat "$stamp")" == "$optional" ]]; then return; fi
  if [[ -n "$required" || (-n "$optional" && -z "$TORCH_DIR") ]]; then
    # shellcheck disable=SC2086
    install_packages $required
    # shellcheck disable=SC2086
    if [[ -z "$TORCH_DIR" ]]; then install_packages $optional; fi
    hash -r
    required="$(missing_required_packages | xargs)"
    optional="$(missing_optional_packages | xargs)"
  fi
  [[ -z "$required" ]] || fail "missing on this machine: $required (install these Debian packages, then try again)"
  if [[ -n "$optional" ]]; then say "not installed (optional): $optional"; fi
  echo "$optional" >"$stamp"
}

# Prints the folder of an installed torch package with a matching libtorch, or nothing. Imports nothing.
find_system_torch() {
  python3 - <<'PY' 2>/dev/null || true
import importlib.util, pathlib
folder = pathlib.Path(importlib.util.find_spec("torch").submodule_search_locations[0])
version = (folder / "version.py").read_text()
if "'2.11." in version and (folder / "lib/libtorch_cpu.so").exists():
    print(folder)
PY
}

# Finds libtorch: TESSERA_TORCH first, then .venv, then the machine's own Python. If TORCH_DIR stays empty, set-up
# installs torch into .venv.
find_torch() {
  if [[ -n "${TESSERA_TORCH:-}" ]]; then
    [[ -e "$TESSERA_TORCH/lib/libtorch_cpu.so" ]] ||
      fail "TESSERA_TORCH=$TESSERA_TORCH: expected the folder of a torch package, with lib/libtorch_cpu.so" 2
    TORCH_DIR="$TESSERA_TORCH"
    return
  fi
  TORCH_DIR="$(compgen -G "$ROOT/.venv/lib/python3*/site-packages/torch" || true)"
  if [[ -n "$TORCH_DIR" ]] && ! wheels_installed; then TORCH_DIR=""; fi
  [[ -n "$TORCH_DIR" ]] || TORCH_DIR="$(find_system_torch)"
}

wheels_installed() { cmp -s tools/run/requirements.txt .venv/requirements-installed.txt; }

# --no-deps: libtorch's CPU part needs two small libraries of the CUDA runtime, not the several GB of torch's
# dependencies.
setup_venv() {
  wheels_installed && return
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "python3 is $(python3 -V 2>&1), expected 3.11 or newer"
  [[ -x .venv/bin/python ]] || echo_run python3 -m venv .venv ||
    fail "could not make .venv (Debian package python3-venv missing?)"
  say "installing Python wheels into .venv (libtorch in its small CPU form; log: .cache/pip.log)"
  .venv/bin/python -m pip install --no-deps --no-cache-dir --disable-pip-version-check -r tools/run/requirements.txt \
    >.cache/pip.log 2>&1 || fail "pip install failed: $(grep -m1 ERROR .cache/pip.log || tail -n1 .cache/pip.log)"
  cp tools/run/requirements.txt .venv/requirements-installed.txt
}

# Finds cmake 3.25 or newer, the machine's or the wheel's, and caches the path in .cache.
find_cmake() {
  CMAKE="$(cat .cache/cmake 2>/dev/null || true)"
  [[ -n "$CMAKE" && -x "$CMAKE" ]] && return
  local candidate
  for candidate in "$(command -v cmake || true)" "$ROOT/.venv/bin/cmake"; do
    [[ -x "$candidate" ]] || continue
    if "$candidate" --version | awk 'NR==1 {split($3, v, "."); exit !(v[1] > 3 || (v[1] == 3 && v[2] >= 25))}'; then
      CMAKE="$candidate"
      echo "$CMAKE" >.cache/cmake
      return
    fi
  done
  fail "no cmake of 3.25 or newer (looked for cmake on PATH and in .venv/bin): install the Debian package cmake"
}

# torch's own commands need Python packages that are not in .venv.
remove_broken_commands() { rm -f .venv/bin/torchrun .venv/bin/torchfrtrace; }

setup() {
  lock_checkout
  remove_broken_commands
  find_torch
  setup_packages
  if [[ -z "$TORCH_DIR" ]]; then
    setup_venv
    remove_broken_commands
    find_torch
    [[ -n "$TORCH_DIR" ]] || fail "the torch wheel was installed but lib/libtorch_cpu.so is not in .venv"
  fi
  if [[ -x .venv/bin/python ]]; then
    PYTHON="$ROOT/.venv/bin/python"
    export PATH="$PATH:$ROOT/.venv/bin"
  else
    PYTHON="$(command -v python3)"
  fi
  find_cmake
  export TESSERA_TORCH="$TORCH_DIR"
  # Nothing is written outside the checkout, including the compiler's cache.
  export CCACHE_DIR="${CCACHE_DIR:-$ROOT/.cache/ccache}" CCACHE_BASEDIR="$ROOT" CCACHE_NOHASHDIR=1
  unlock_checkout
}
