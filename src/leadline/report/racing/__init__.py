"""A race of residual schemes: its record, and how it is written."""
