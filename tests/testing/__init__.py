"""Tests of what Leadline offers to the tests of others."""
