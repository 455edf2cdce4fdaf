#!/bin/sh
# run_stopped.sh SCENARIO PROGRAM LAUNCHER...: one scenario of failures.cpp in which rank 1 stops where MPI itself waits.
# Passes when another rank says so and the launcher ends the job with an error: that rank's exit code 1, or a signal of
# its own, since Open MPI 4's mpirun may crash when it has ended ranks that were in MPI_Finalize.
scenario=$1
program=$2
shift 2
output=$(timeout 40 "$@" "$program" "$scenario" unused 2>&1)
code=$?
echo "$output"
case $scenario in
  stop-at-start) expected='rank [02]: MPI_Init_thread: expected all ranks within 2000 ms, got no end' ;;
  stop-at-end) expected='rank [02]: MPI_Finalize: expected all ranks within 2000 ms, got no end' ;;
esac
echo "$output" | grep -q "tessera: $expected" || exit 1
if [ "$scenario" = stop-at-end ]; then echo "$output" | grep -q 'rank [02] is done' || exit 1; fi
test "$code" -eq 1 -o "$code" -ge 129
