#!/usr/bin/env bash
# Builds Tessera on a machine without network and without the Debian packages of its libraries, such as a compute node.
#
#   tools/cluster/offline.sh pack FOLDER               on a machine with network: downloads the libraries into FOLDER
#   tools/cluster/offline.sh build FOLDER [TARGET...]  on the other machine: builds the preset cuda with them
#
# Both machines have the same processor architecture. The other machine needs g++, CMake 3.25, Ninja, CUDA, and a python3
# with PyTorch 2.11. MPI is optional there.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
PACKAGES=(nlohmann-json3-dev libcli11-dev libfmt-dev libxxhash-dev libgtest-dev libgmock-dev)

fail() {
  echo "offline.sh: $1" >&2
  exit 2
}

pack() {
  local folder="$1" temporary package libraries
  temporary="$(mktemp -d)"
  trap 'rm -rf "$temporary"' RETURN
  # CMake's files of these packages name the shared libraries, which are packages of their own.
  libraries="$(apt-cache depends "${PACKAGES[@]}" | awk '/Depends: lib(fmt|xxhash)[0-9]/ {print $2}')"
  # shellcheck disable=SC2086
  (cd "$temporary" && apt-get download "${PACKAGES[@]}" $libraries >&2) ||
    fail "apt-get download failed: are its lists up to date (apt-get update)?"
  mkdir -p "$folder"
  for package in "$temporary"/*.deb; do dpkg -x "$package" "$folder"; done
  rm -rf "$folder/usr/share/doc"
  echo "$folder: $(du -sh "$folder" | cut -f1)"
}

build() {
  local libraries torch
  [[ -d "$1/usr/include" ]] || fail "$1: expected a folder that 'pack' has written"
  libraries="$(cd "$1" && pwd)/usr"
  shift
  torch="${TESSERA_TORCH:-$(python3 -c 'import torch, pathlib; print(pathlib.Path(torch.__file__).parent)')}"
  export CPLUS_INCLUDE_PATH="$libraries/include${CPLUS_INCLUDE_PATH:+:$CPLUS_INCLUDE_PATH}"
  cd "$ROOT"
  cmake --preset cuda -DTESSERA_TORCH="$torch" -DCMAKE_PREFIX_PATH="$libraries" -DXXHASH_INCLUDE="$libraries/include"
  local targets=()
  if [[ $# -gt 0 ]]; then targets=(--target "$@"); fi
  cmake --build build/cuda "${targets[@]}"
}

case "${1:-}" in
  pack | build) [[ $# -ge 2 ]] || fail "$1: expected a folder"; "$@" ;;
  *) fail "expected 'pack FOLDER' or 'build FOLDER [TARGET...]', got '$*'" ;;
esac
