#!/bin/sh
# run_failure.sh SCENARIO PROGRAM LAUNCHER...: one scenario of failures.cpp under the launcher, in a fresh folder. Passes
# when rank 0 finds what it expects and the launcher hands on the exit code of abort_mpi, 3.
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
