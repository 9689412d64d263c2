"""Tests of attachments attach with the `attach` fixture."""

from tests.support.attachments import attach

__all__ = ["attach"]
