"""Experiment trackers, one file each; every class takes the run, writer or client that the user created."""
