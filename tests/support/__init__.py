"""Helpers of the tests: models, records and small programs that several tests use."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The root of the repository."""
