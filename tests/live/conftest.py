"""Fixtures of the live page's tests, which the browser's tests use too."""

from live.served import run, serve

__all__ = ["run", "serve"]
