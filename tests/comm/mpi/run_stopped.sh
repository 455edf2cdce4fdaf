#!/bin/sh
# run_stopped.sh SCENARIO PROGRAM LAUNCHER...: one scenario of failures.cpp in which rank 1 stops where MPI itself waits.
# Passes when another rank says so, all ranks end, and the launcher ends with an error: that rank's exit code 1, or a
# signal of its own, since Open MPI 4's mpirun may crash when it has ended ranks that were in MPI_Finalize. It may also
# wait for itself then and never end: where no rank of it runs any more after 20 s, it is killed.
scenario=$1
program=$2
shift 2
# Whether one of the processes that ps selects runs, and is no zombie.
runs() { ps -o stat= "$@" | grep -qv Z; }

said=$(mktemp)
"$@" "$program" "$scenario" unused >"$said" 2>&1 &
launcher=$!
tries=100
while runs -p "$launcher" && [ "$tries" -gt 0 ]; do
  sleep 0.2
  tries=$((tries - 1))
done
left=no
if runs -p "$launcher"; then
  runs --ppid "$launcher" && left=yes
  kill -KILL "$launcher"
fi
wait "$launcher"
code=$?
output=$(cat "$said")
rm -f "$said"
echo "$output"
if [ "$left" = yes ]; then
  echo "ranks still ran after 20 s"
  exit 1
fi
case $scenario in
  stop-at-start) expected='rank [02]: MPI_Init_thread: expected all ranks within 2000 ms, got no end' ;;
  stop-at-end) expected='rank [02]: MPI_Finalize: expected all ranks within 2000 ms, got no end' ;;
esac
echo "$output" | grep -q "tessera: $expected" || exit 1
if [ "$scenario" = stop-at-end ]; then echo "$output" | grep -q 'rank [02] is done' || exit 1; fi
test "$code" -eq 1 -o "$code" -ge 129
