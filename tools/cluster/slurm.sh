#!/usr/bin/env bash
# Trains on several nodes of a Slurm cluster: one process a GPU, started by srun. Copy it and change the first lines.
#
#   sbatch --nodes 2 tools/cluster/slurm.sh --model llama3-8b --data DATA --gtp 16 --dtype bf16 --steps 1000 --out RUN
#
# Ten minutes before the time limit Slurm sends SIGTERM. The run then saves a checkpoint, and the script submits itself again
# with --resume latest.
#SBATCH --job-name=tessera
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@600
set -euo pipefail
: "${TESSERA:=build/cuda/apps/tessera}" # a path that every node can read
nodes="${SLURM_JOB_NUM_NODES:?start this script with sbatch}"

# The value of a flag among the arguments; empty if it is absent.
value_of() {
  local flag="$1" previous=""
  shift
  for word in "$@"; do
    [[ "$previous" == "$flag" ]] && echo "$word"
    [[ "$word" == "$flag="* ]] && echo "${word#*=}"
    previous="$word"
  done
  return 0
}

out="$(value_of --out "$@")"
arguments=("$@")
# A run that has a checkpoint is resumed, with all its settings.
if [[ -n "$out" ]] && compgen -G "$out/checkpoints/step-*" >/dev/null; then arguments=(--resume latest --out "$out"); fi

srun --kill-on-bad-exit=1 --ntasks-per-node="${SLURM_NTASKS_PER_NODE:-8}" --nodes="$nodes" \
  "$TESSERA" train --backend nccl "${arguments[@]}" &
step=$!
stopped=0
trap 'stopped=1; kill -TERM "$step" 2>/dev/null || true' TERM
code=0
wait "$step" || code=$?
if [[ "$stopped" == 1 ]]; then
  code=0
  wait "$step" || code=$?
  if [[ "$code" == 0 ]]; then sbatch --nodes "$nodes" "$0" "$@"; fi
fi
exit "$code"
