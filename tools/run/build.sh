# build PRESET [TARGET...]: set-up, configure when needed, compile; without a target all of it, tests included.
# build_quietly PRESET TARGET...: the same for what another command needs; on stderr, and silent when nothing is to be done.
build_quietly() { IS_QUIET=1 build "$@" >&2; }

# work_alone TITLE: passes on what a build prints, under the title; nothing of a build that finds nothing to do.
work_alone() {
  awk -v title="[run] $1" '/Re-checking globbed directories\.\.\.$/ || /^ninja: (no work to do|Entering directory)/ {next}
    !shown++ {print title} {print; fflush()}'
}

build() {
  local preset="$1"
  shift
  [[ "$preset" =~ ^(cpu|cpu-debug|cpu-asan|cpu-tsan|cuda)$ ]] ||
    fail "unknown preset '$preset': expected cpu, cpu-debug, cpu-asan, cpu-tsan or cuda" 2
  setup
  lock_checkout
  local folder="build/$preset" inputs
  # What the build was configured from; CMake itself notices changes of its own files.
  inputs="$TESSERA_TORCH $CMAKE $(cksum <CMakePresets.json)"
  if [[ ! -e "$folder/build.ninja" || "$(cat "$folder/configured-from" 2>/dev/null)" != "$inputs" ]]; then
    say "configuring $preset (log: .cache/configure-$preset.log)"
    rm -f "$folder/CMakeCache.txt"
    if ! "$CMAKE" --preset "$preset" -DTESSERA_TORCH="$TESSERA_TORCH" >".cache/configure-$preset.log" 2>&1; then
      tail -n 30 ".cache/configure-$preset.log" >&2
      fail "configuring $preset failed"
    fi
    echo "$inputs" >"$folder/configured-from"
  fi
  compile "$folder" "building $preset${*:+: $*}" "$@" || fail "building $preset failed"
  unlock_checkout
  if [[ "$preset" == cuda ]]; then say_missing_libraries "$folder/apps/tessera"; fi
}

# compile FOLDER TITLE [TARGET...]
compile() {
  local folder="$1" title="$2"
  shift 2
  if [[ -n "${IS_QUIET:-}" ]]; then
    "$CMAKE" --build "$folder" ${*:+--target "$@"} 2>&1 | work_alone "$title"
  else
    say "$title"
    "$CMAKE" --build "$folder" ${*:+--target "$@"}
  fi
}

# A libtorch in its small form has what linking needs, and not what running on GPUs does.
say_missing_libraries() {
  MISSING_LIBRARIES="$({ ldd "$1" 2>/dev/null || true; } | awk '/not found/ {print $1}' | sort -u | xargs)"
  [[ -z "$MISSING_LIBRARIES" ]] || say "built, but it cannot run here: $MISSING_LIBRARIES not found (TESSERA_TORCH names the torch" \
    "folder of a PyTorch 2.11 that was installed with CUDA)"
}
