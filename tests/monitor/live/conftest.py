"""Fixtures of the live page's tests, which the browser's tests use too."""

from tests.support.live_server import run, serve

__all__ = ["run", "serve"]
