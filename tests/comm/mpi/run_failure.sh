#!/bin/sh
# run_failure.sh SCENARIO PROGRAM LAUNCHER...: runs one scenario of failures.cpp under the launcher, in a new folder.
# Passes if rank 0 finds the expected errors and the launcher returns abort_mpi's exit code, 3.
scenario=$1
program=$2
shift 2
folder=$(mktemp -d)
timeout 60 "$@" "$program" "$scenario" "$folder" > "$folder/output" 2>&1
code=$?
cat "$folder/output"
grep -q "^$scenario: as expected" "$folder/output" && test "$code" -eq 3
passed=$?
rm -rf "$folder"
exit "$passed"
