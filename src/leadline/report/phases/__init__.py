"""A phase diagram: its record, and how it is written."""
