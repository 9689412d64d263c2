"""Tests of leadline.weightless."""
