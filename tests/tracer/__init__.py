"""Tests of the tracer."""
