"""The commands of the lab, which the command line collects: `leadline lab`, `race`, `phase` and `demo`."""
