# build PRESET [TARGET...]: sets up, configures if needed and compiles. Without a target it builds everything, tests
# included.
#
# build_quietly PRESET TARGET...: builds the targets for another command. Output goes to stderr; without work to do
# there is no output.
build_quietly() { IS_QUIET=1 build "$@" >&2; }

# work_alone TITLE: passes on a build's output under the title, line by line; prints nothing if the build has nothing to do. It
# is not an awk program, because mawk reads 4 KB before it prints a line.
work_alone() {
  local title="[run] $1" line
  while IFS= read -r line || [[ -n "$line" ]]; do
    [[ "$line" =~ (Re-checking globbed directories\.\.\.$)|(^ninja: (no work to do|Entering directory)) ]] && continue
    printf '%s' "${title:+$title$'\n'}" "$line"$'\n'
    title=""
  done
}

build() {
  local preset="$1"
  shift
  [[ "$preset" =~ ^(cpu|cpu-debug|cpu-asan|cpu-tsan|cuda)$ ]] ||
    fail "unknown preset '$preset': expected cpu, cpu-debug, cpu-asan, cpu-tsan or cuda" 2
  setup
  lock_checkout
  local folder="build/$preset" inputs
  # The inputs of the configuration. CMake itself detects changes of its own files.
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

# The small form of libtorch is enough for linking but not for running on GPUs.
say_missing_libraries() {
  MISSING_LIBRARIES="$({ ldd "$1" 2>/dev/null || true; } | awk '/not found/ {print $1}' | sort -u | xargs)"
  [[ -z "$MISSING_LIBRARIES" ]] || say "built, but it cannot run here: $MISSING_LIBRARIES not found (set TESSERA_TORCH to the torch" \
    "folder of a PyTorch 2.11 installed with CUDA)"
}
