"""Theory against samples: every rule against its own op, and whole networks."""
