"""`leadline doctor`: shows what a bug report should contain."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib import metadata

import click

from leadline import __version__
from leadline.cli.exit_codes import FINE
from leadline.cli.options import examples
from leadline.cli.output import emit


@click.command(epilog=examples("leadline doctor"))
def doctor() -> int:
    """Show versions, devices and threads: what a bug report should contain."""
    emit("".join(f"{name:<10}{value}\n" for name, value in _environment()))
    return FINE


def _environment() -> Iterator[tuple[str, str]]:
    yield "leadline", __version__
    yield "python", f"{platform.python_version()} on {platform.platform()}"
    try:
        import torch
    except ImportError as error:
        raise click.ClickException(
            f"torch cannot be imported: {error}. Install it from https://pytorch.org"
        ) from None
    yield "torch", torch.__version__
    for name in ("click", "rich", "msgspec"):
        yield name, metadata.version(name)
    cards = [
        f"cuda:{index} {torch.cuda.get_device_name(index)}" for index in range(torch.cuda.device_count())
    ]
    apple = ["mps"] if torch.backends.mps.is_available() else []
    yield "devices", ", ".join(["cpu", *cards, *apple])
    from leadline.tracer.stats_kernel import ABSENCE  # it imports torch, too

    yield "kernel", f"not used: {ABSENCE}" if ABSENCE else "compiled"
    yield "threads", f"{torch.get_num_threads()} of {os.cpu_count()} cores"
