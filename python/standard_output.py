"""Standard output whose loss is reported: a closed or full output, or a pipe without a reader."""
import errno
import os
import sys


def print_results(text, script):
    """Prints the results of a script at once. If standard output does not take them, prints one line on standard error and ends
    the script with code 1."""
    try:
        if sys.stdout is None:  # closed when Python started
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        print(text, flush=True)
    except OSError as error:
        if sys.stdout is not None:  # Python writes the rest again when it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"{script}: standard output: {error.strerror}: the output is incomplete", file=sys.stderr)
        sys.exit(1)
