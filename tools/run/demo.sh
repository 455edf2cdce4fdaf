# The demo: real text, prepared once, and a training run on it.

prepare_demo_data() {
  if [[ -e data/demo/meta.json ]]; then return; fi
  ensure_data_tools
  say "preparing the demo's text in data/demo (once)"
  "$PYTHON" python/prepare_demo.py --output data/demo || fail "preparing the demo's text failed"
}

# On a machine with a torch of its own there may be no tokenizers: these two wheels then go into .venv.
ensure_data_tools() {
  "$PYTHON" -c 'import numpy, tokenizers' 2>/dev/null && return
  [[ -x .venv/bin/python ]] || echo_run python3 -m venv .venv || fail "could not make .venv for numpy and tokenizers"
  PYTHON="$ROOT/.venv/bin/python"
  "$PYTHON" -c 'import numpy, tokenizers' 2>/dev/null && return
  say "installing numpy and tokenizers into .venv"
  grep -E '^(numpy|tokenizers)' tools/run/requirements.txt >.cache/data-requirements.txt
  "$PYTHON" -m pip install --no-deps --no-cache-dir -r .cache/data-requirements.txt >.cache/pip.log 2>&1 ||
    fail "pip install failed: $(tail -n1 .cache/pip.log)"
}

# The first free name among runs/demo, runs/demo-2, ...: a finished run is never touched.
next_run_folder() {
  local folder=runs/demo n=2
  while [[ -e "$folder" ]]; do
    folder="runs/demo-$n"
    n=$((n + 1))
  done
  echo "$folder"
}

# train_demo ARGS: a flag among ARGS replaces the demo's own value of it.
train_demo() {
  build cpu tessera
  prepare_demo_data
  local -a defaults=(--model llama-demo --data data/demo/train --valid data/demo/valid --backend local
    --ranks 4 --tp 2 --gtp 2 --seq-len 128 --micro-batch 4 --global-batch 16 --steps 300 --lr 2e-3 --warmup-steps 30)
  local -A given=()
  local argument i out=""
  for argument in "$@"; do
    [[ "$argument" == --* ]] && given["${argument%%=*}"]=1
  done
  # Without --out: the first free folder. Another mesh brings its own number of ranks.
  for argument in --tp --gtp --dp; do
    [[ -n "${given[$argument]:-}" ]] && given[--ranks]=1
  done
  local -a arguments=()
  for ((i = 0; i < ${#defaults[@]}; i += 2)); do
    [[ -n "${given[${defaults[i]}]:-}" ]] || arguments+=("${defaults[@]:i:2}")
  done
  arguments+=("$@")
  if [[ -z "${given[--out]:-}" ]]; then
    out="$(next_run_folder)"
    arguments+=(--out "$out")
  else
    out="$(value_of_flag --out "$@")"
  fi
  echo_run build/cpu/apps/tessera train "${arguments[@]}" || fail "training failed; what it wrote is in $out"
  "$PYTHON" tools/run/report.py "$out" data/demo/meta.json
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
}
