"""Exit codes of every command."""

# Derived: what shells read as success.
FINE = 0
# Derived: findings at or above --fail-on; linters use 1 for this.
FOUND = 1
# Derived: wrong usage, or an error; click uses 2 for this.
FAILED = 2
# Derived: the model or run could not be judged; the next free code.
UNDECIDED = 3
# Derived: Ctrl-C, as shells report it: 128 plus signal 2.
INTERRUPTED = 130
