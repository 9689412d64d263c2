"""Readings: pure functions from a Trace (and, for `update`, the live case) to one part of the Profile."""
