# The demo: prepares real text once and trains a model on it.

prepare_demo_data() {
  if [[ -e data/demo/meta.json ]]; then return; fi
  ensure_data_tools
  say "preparing the demo's text in data/demo (once)"
  "$PYTHON" python/prepare_demo.py --output data/demo || fail "preparing the demo's text failed"
}

# On a machine with its own torch, .venv uses the packages of the machine. If it lacks numpy or tokenizers, these wheels
# are installed into .venv.
ensure_data_tools() {
  [[ -x .venv/bin/python ]] || echo_run python3 -m venv --system-site-packages .venv ||
    fail "could not make .venv for numpy and tokenizers"
  PYTHON="$ROOT/.venv/bin/python"
  "$PYTHON" -c 'import numpy, tokenizers' 2>/dev/null && return
  say "installing numpy and tokenizers into .venv"
  grep -E '^(numpy|tokenizers)' tools/run/requirements.txt >.cache/data-requirements.txt
  "$PYTHON" -m pip install --no-deps --no-cache-dir -r .cache/data-requirements.txt >.cache/pip.log 2>&1 ||
    fail "pip install failed: $(tail -n1 .cache/pip.log)"
}

# Prints the first free name among runs/demo, runs/demo-2, ... A finished run is never changed.
next_run_folder() {
  local folder=runs/demo n=2
  while [[ -e "$folder" ]]; do
    folder="runs/demo-$n"
    n=$((n + 1))
  done
  echo "$folder"
}

# Prints the newest of runs/demo, runs/demo-2, ...; prints an empty line if these folders do not exist. A
# run replaces files of its folder when it starts and when it ends, so the time of the folder is the time of the run.
last_run_folder() {
  local folder last=""
  for folder in runs/demo runs/demo-[0-9]*; do
    [[ -d "$folder" && (-z "$last" || "$folder" -nt "$last") ]] && last="$folder"
  done
  echo "$last"
}

# demo_mesh MODEL: the flags of the demo's mesh.
demo_mesh() {
  if [[ "$1" == mixtral-demo ]]; then echo --ranks 4 --tp 1 --gtp 4 --ep 2 --egtp 2; else echo --ranks 4 --tp 2 --gtp 2; fi
}

# Prints the demo's flags. If the run is too short for the usual warm-up, the warm-up is a tenth of the steps.
demo_flags() {
  local steps warmup=30
  steps="$(value_of_flag --schedule-steps "$@")"
  [[ -n "$steps" ]] || steps="$(value_of_flag --steps "$@")"
  if [[ "$steps" =~ ^[0-9]{1,9}$ ]] && ((steps < 10 * warmup)); then warmup=$((steps / 10)); fi
  echo --model llama-demo --data data/demo/train --valid data/demo/valid --backend local \
    $(demo_mesh "$(value_of_flag --model "$@")") --seq-len 128 --micro-batch 4 --global-batch 16 --steps 300 --lr 2e-3 --warmup-steps $warmup
}

train_help() {
  cat <<'HELP'
usage: ./run train [ARGS]

Builds, prepares the demo's text once and calls `tessera train` with ARGS and these flags, unless ARGS have them:
HELP
  demo_flags | fold -s -w 110 | sed 's/^/  /; s/ *$//'
  echo "In a run of fewer than 300 steps, --warmup-steps is a tenth of the steps."
  echo "With --model mixtral-demo, the flags of the mesh are $(demo_mesh mixtral-demo)."
  cat <<'HELP'
A new run is stored in the first free folder of runs/demo, runs/demo-2, ... With --resume none of these flags is passed;
`--resume latest` without --out resumes the newest run of these folders; --init FOLDER replaces --model. Ctrl-C saves
a checkpoint and ends the run. The flags of `tessera train` follow; the program is built first.

HELP
  build_quietly cpu tessera
  exec build/cpu/apps/tessera train --help
}

# demo_arguments ARGS: sets `arguments`, the arguments of `tessera train`, and `out`, the run's folder. A flag in ARGS
# replaces the demo's value. A resumed run takes its settings from the checkpoint.
demo_arguments() {
  local argument i
  local -a defaults=()
  local -A given=()
  for argument in "$@"; do
    [[ "$argument" == --* ]] && given["${argument%%=*}"]=1
  done
  [[ -n "${given[--resume]:-}" ]] || read -ra defaults <<<"$(demo_flags "$@")"
  # Another mesh implies its own number of ranks.
  for argument in --tp --gtp --dp; do
    [[ -n "${given[$argument]:-}" ]] || continue
    given[--ranks]=1
    [[ "$argument" == --dp ]] || given[--ep]=1 given[--egtp]=1
  done
  for argument in --etp --ep --egtp; do
    [[ -n "${given[$argument]:-}" ]] || continue
    given[--ep]=1 given[--egtp]=1
  done
  # The folder of --init has its own model.
  [[ -n "${given[--init]:-}" ]] && given[--model]=1
  arguments=()
  for ((i = 0; i < ${#defaults[@]}; i += 2)); do
    [[ -n "${given[${defaults[i]}]:-}" ]] || arguments+=("${defaults[@]:i:2}")
  done
  arguments+=("$@")
  out="$(value_of_flag --out "$@")"
  [[ -z "$out" ]] || return 0
  if [[ "$(value_of_flag --resume "$@")" == latest ]]; then
    out="$(last_run_folder)"
    [[ -n "$out" ]] || fail "--resume latest: there is no runs/demo; --out names the folder of the run to resume" 2
  else
    out="$(next_run_folder)"
  fi
  arguments+=(--out "$out")
}

# train_demo ARGS
train_demo() {
  local argument out code=0
  local -a arguments
  for argument in "$@"; do
    case "$argument" in --help | -h) train_help ;; esac
  done
  demo_arguments "$@"
  build_quietly cpu tessera
  prepare_demo_data
  say "build/cpu/apps/tessera train ${arguments[*]}"
  run_stoppable build/cpu/apps/tessera train "${arguments[@]}" || code=$?
  if [[ "$code" != 0 ]]; then
    if [[ -e "$out" ]]; then fail "training failed; its output is in $out" "$code"; fi
    fail "training failed; it wrote nothing" "$code"
  fi
  # The last line of an interrupted run is the command that resumes it.
  if is_interrupted "$out"; then return 0; fi
  # A run of 0 steps has no lines.
  if [[ -s "$out/metrics.jsonl" ]]; then echo && build/cpu/apps/tessera plot "$out"; fi
  "$PYTHON" tools/run/report.py "$out" data/demo/meta.json
  show_sample "$out"
}

is_interrupted() {
  grep -q '"interrupted": true' "$1/summary.json"
}

# Prints a text of the model, unless the run has no tokenizer.
show_sample() {
  [[ -e "$1/tokenizer/tokenizer.json" ]] || return 0
  local -a command=(generate "$1" --prompt Water --tokens 48 --temperature 0.8 --top-p 0.9)
  echo
  say "a sample: build/cpu/apps/tessera ${command[*]}"
  TESSERA_PYTHON="$PYTHON" build/cpu/apps/tessera "${command[@]}" || say "there is no sample"
}

# value_of_flag FLAG ARGS: the word after FLAG, or after FLAG=.
value_of_flag() {
  local flag="$1" previous=""
  shift
  local argument
  for argument in "$@"; do
    [[ "$previous" == "$flag" ]] && echo "$argument"
    [[ "$argument" == "$flag="* ]] && echo "${argument#*=}"
    previous="$argument"
  done
  return 0
}
