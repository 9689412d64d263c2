"""Models without weights or memory."""
