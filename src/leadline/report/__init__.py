"""Showing what was found. Reads records only, so it works without torch and on saved files."""

from leadline.records.report import Report

__all__ = ["Report"]
