"""Tests of what the command line says about wiring use its `run` fixture."""

from tests.support.command_line import run

__all__ = ["run"]
