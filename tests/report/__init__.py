"""Tests of the pages a report can be shown as."""
