"""Model checks, one file each: pure functions of a Profile."""
