# Messages and the lock that the parts of ./run share.

say() { printf '[run] %s\n' "$*"; }

# fail MESSAGE [EXIT_CODE]: one line, then the end.
fail() {
  printf '[run] error: %s\n' "$1" >&2
  exit "${2:-1}"
}

# Runs a command of ./run with its output on stderr, so that stdout stays the program's own.
say_to_stderr() { "$@" >&2; }

# Prints a command, then runs it.
echo_run() {
  say "$*"
  "$@"
}

# Two ./run at once in one checkout take turns to set up and build.
lock_checkout() {
  mkdir -p .cache
  exec 9>.cache/lock
  if ! flock -n 9; then
    say "waiting for another ./run to finish its set-up or build"
    flock 9
  fi
}

unlock_checkout() { exec 9>&-; }
