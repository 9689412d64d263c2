"""Benchmarks: each script measures something, stores its result, and fills the tables that quote it."""
