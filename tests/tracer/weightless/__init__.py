"""Tests of leadline.tracer.weightless."""
