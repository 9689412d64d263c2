"""Exit codes of every command."""

FINE = 0
# Findings at or above --fail-on.
FOUND = 1
# Wrong usage, or an error.
FAILED = 2
# The model or run could not be judged.
UNDECIDED = 3
# Ctrl-C, as shells report it: 128 plus signal 2.
INTERRUPTED = 130
