#!/bin/sh
# run_stopped.sh SCENARIO PROGRAM LAUNCHER...: runs one scenario of failures.cpp in which rank 1 stops while MPI itself
# waits. Passes if another rank prints the error, all ranks end, and the launcher ends with an error: that rank's exit
# code 1, or a signal. Open MPI 4's mpirun may crash after it has ended ranks that were in MPI_Init or MPI_Finalize. It
# may also wait forever there. A launcher that still runs 3 s after its last rank has ended is therefore killed.
scenario=$1
program=$2
shift 2
# Returns whether one of the processes that ps selects runs and is not a zombie.
runs() { ps -o stat= "$@" | grep -qv Z; }

said=$(mktemp)
"$@" "$program" "$scenario" unused >"$said" 2>&1 &
launcher=$!
tries=200
started=no
alone=0  # consecutive tries in which the launcher runs without its ranks
while runs -p "$launcher" && [ "$tries" -gt 0 ] && [ "$alone" -lt 15 ]; do
  if [ -s "$said" ] || ps -o args= --ppid "$launcher" | grep -qF "$program"; then started=yes; fi
  if runs --ppid "$launcher"; then
    alone=0
  elif [ "$started" = yes ]; then
    alone=$((alone + 1))
  fi
  sleep 0.2
  tries=$((tries - 1))
done
late=no
if runs -p "$launcher"; then
  if runs --ppid "$launcher"; then late=yes; fi
  kill -TERM "$launcher"  # it ends its ranks
  sleep 3
  # shellcheck disable=SC2046 # one word for each process
  kill -KILL $(ps -o pid= --ppid "$launcher") "$launcher" 2>/dev/null
fi
wait "$launcher"
code=$?
output=$(cat "$said")
rm -f "$said"
echo "$output"
if [ "$late" = yes ]; then
  echo "not ended after 40 s"
  exit 1
fi
case $scenario in
  stop-at-start) expected='rank [02]: MPI_Init_thread: expected all ranks within 2000 ms, but the call did not return' ;;
  stop-at-end) expected='rank [02]: MPI_Finalize: expected all ranks within 2000 ms, but the call did not return' ;;
esac
echo "$output" | grep -q "tessera: $expected" || exit 1
if [ "$scenario" = stop-at-end ]; then echo "$output" | grep -q 'rank [02] is done' || exit 1; fi
test "$code" -eq 1 -o "$code" -ge 129
