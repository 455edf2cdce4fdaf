#!/usr/bin/env bash
# Trains on several machines without a scheduler: starts one process a GPU over ssh.
#
#   tools/cluster/hosts.sh --hosts node1,node2 --gpus 8 -- --model llama3-8b --data DATA --gtp 16 --dtype bf16 --steps 1000 --out RUN
#
# The repository must have the same path on every machine, and ssh must need no password. The first host is rank 0. Ctrl-C, SIGTERM
# and the loss of the terminal end the connections. The ranks then receive SIGHUP: the run saves a checkpoint and ends. Each run
# needs its own port. Variables: TESSERA (the program), MASTER_PORT (29500), SSH (ssh).
set -euo pipefail
fail() { echo "hosts.sh: $1" >&2; exit 2; }

hosts="" gpus=""
while [[ $# -gt 0 && "$1" != -- ]]; do
  case "$1" in
    --help | -h) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --hosts) hosts="${2:-}"; shift 2 || fail "--hosts: expected names, separated by commas" ;;
    --gpus) gpus="${2:-}"; shift 2 || fail "--gpus: expected the number of GPUs of a host" ;;
    *) fail "unknown argument '$1': expected --hosts, --gpus, then -- and the flags of tessera train" ;;
  esac
done
[[ "${1:-}" == -- ]] && shift
[[ -n "$hosts" ]] || fail "--hosts is missing: expected names, separated by commas"
[[ "$gpus" =~ ^[1-9][0-9]*$ ]] || fail "--gpus: got '$gpus', expected the number of GPUs of a host"
[[ $# -gt 0 ]] || fail "expected -- and the flags of tessera train"

IFS=, read -ra names <<<"$hosts"
program="${TESSERA:-$PWD/build/cuda/apps/tessera}"
size=$((${#names[@]} * gpus))
run="$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')" # distinguishes this run from other runs on the same port
pids=()
# ssh -tt: at the end of the connection, the remote process receives SIGHUP.
for node in "${!names[@]}"; do
  for ((local = 0; local < gpus; ++local)); do
    rank=$((node * gpus + local))
    printf -v line 'cd %q && RANK=%d WORLD_SIZE=%d LOCAL_RANK=%d LOCAL_WORLD_SIZE=%d MASTER_ADDR=%q MASTER_PORT=%d TESSERA_RUN_ID=%q exec %q train' \
      "$PWD" "$rank" "$size" "$local" "$gpus" "${names[0]}" "${MASTER_PORT:-29500}" "$run" "$program"
    for word in --backend nccl "$@"; do printf -v line '%s %q' "$line" "$word"; done
    # shellcheck disable=SC2086
    ${SSH:-ssh -tt -o BatchMode=yes} "${names[node]}" "$line" </dev/null &
    pids+=($!)
  done
done
# ssh ignores SIGINT in the background.
trap 'kill -TERM "${pids[@]}" 2>/dev/null || true' INT TERM HUP
code=0
for pid in "${pids[@]}"; do
  wait "$pid" || code=$?
done
exit "$code"
