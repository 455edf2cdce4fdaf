#!/usr/bin/env bash
# Compares Tessera's step with PyTorch's FSDP2 on the same GPUs. `bench/compare.sh --help` lists the flags.
set -euo pipefail
exec python3 "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/peers/compare_gpus.py" "$@"
