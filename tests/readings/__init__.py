"""Tests of readings."""
