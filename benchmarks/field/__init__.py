"""Bugs that people reported, rebuilt in small programs, and what `leadline run` says of each.

    python -m benchmarks.field truth             train every program, healthy and with each bug, without Leadline
    python -m benchmarks.field check             run every program and bug under Leadline
    python -m benchmarks.field check --part seen --only digits_cnn
    python -m benchmarks.field keep-first        keep the answers as the first ones; they are never changed again
    python -m benchmarks.field render            fill docs/lab-notes/field.md

Results are saved after each case, and cases that have one are skipped.
"""
