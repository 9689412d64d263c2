"""The commands of the lab, found by the command line: `leadline lab`, `leadline race` and `leadline phase`."""
