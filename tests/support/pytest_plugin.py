"""How a test starts pytest with Leadline's plugin."""

from importlib.metadata import entry_points

PLUGIN = "leadline.testing.plugin"
LOAD = () if any(each.value == PLUGIN for each in entry_points(group="pytest11")) else ("-p", PLUGIN)
"""Options that load the plugin; none are needed where Leadline is installed."""
