"""Experiments: networks and data on which the claims of the toolkit are shown and tested."""
