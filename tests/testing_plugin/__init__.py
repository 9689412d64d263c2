"""Tests of what Leadline offers to the tests of others."""

from importlib.metadata import entry_points

PLUGIN = "leadline.testing.plugin"
LOAD = () if any(each.value == PLUGIN for each in entry_points(group="pytest11")) else ("-p", PLUGIN)
"""How a run of pytest gets the plugin: by itself, or by name in a checkout that is not installed."""
