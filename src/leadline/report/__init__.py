"""Pages of records: what is shown, and how it looks. Reads records only, so it works on saved files without torch."""

from leadline.records.report import Report

__all__ = ["Report"]
