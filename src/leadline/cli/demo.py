"""`leadline demo`: a bundled network that does not train."""

from __future__ import annotations

import click

from leadline.cli.check import TWIN, examine
from leadline.cli.options import FINE, color_option, detail_options, examples
from leadline.cli.output import at_work, emit, look_for, say
from leadline.report.formats import FORMATS

DEMO = "leadline.lab.demo:deep_mlp"


@click.command(epilog=examples("leadline demo", "leadline demo -v"))
@detail_options
@color_option
def demo(quiet: bool, verbose: bool, no_color: bool) -> int:
    """Check a bundled network of 60 layers that does not train."""
    look = look_for(quiet=quiet, verbose=verbose, no_color=no_color)
    if not quiet:
        say("A network of 60 ReLU layers with PyTorch's default initialisation is to tell two spirals apart.")
        say(f"Running: leadline check {DEMO}\n")
    with at_work(quiet=quiet):
        found = examine(DEMO, seed=0)
    emit(FORMATS["text"]([found], look))
    if not quiet:
        say(f"\nIts twin, as deep but with scaled residual branches, trains: leadline check {TWIN}")
    return FINE
