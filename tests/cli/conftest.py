"""Every test of the command line runs it with the `run` fixture."""

from tests.support.command_line import run

__all__ = ["run"]
