# Messages and the lock that the parts of ./run share.

say() { printf '[run] %s\n' "$*"; }

# fail MESSAGE [EXIT_CODE]: prints one line and exits.
fail() {
  printf '[run] error: %s\n' "$1" >&2
  exit "${2:-1}"
}

# Prints a command, then runs it.
echo_run() {
  say "$*"
  "$@"
}

# Runs a program that finishes cleanly when it is asked to stop. The script forwards its signals to the program and
# waits for the program to end. The program may receive a signal twice, for example one from a terminal.
run_stoppable() {
  local signal program code=0 is_passed_on=1
  # A background process of a script ignores SIGINT unless a trap was set before.
  (
    trap : INT
    exec "$@"
  ) <&0 &
  program=$!
  for signal in INT TERM USR1 HUP; do
    # shellcheck disable=SC2064
    trap "is_passed_on=1; kill -$signal $program 2>/dev/null || true" "$signal"
  done
  while ((is_passed_on)); do
    is_passed_on=0
    wait "$program" && code=0 || code=$?
  done
  trap - INT TERM USR1 HUP
  return "$code"
}

# If two ./run commands run in one checkout, they set up and build one after the other.
lock_checkout() {
  mkdir -p .cache
  exec 9>.cache/lock
  if ! flock -n 9; then
    say "waiting for another ./run to finish its set-up or build"
    flock 9
  fi
}

unlock_checkout() { exec 9>&-; }
