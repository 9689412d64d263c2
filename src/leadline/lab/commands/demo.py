"""`leadline demo`: check and repair a bundled network that does not train, then train both versions."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from leadline.cli.check import TRAINABLE_DEMO, check_target
from leadline.cli.exit_codes import FINE
from leadline.cli.fix import BUDGET, repair_target
from leadline.cli.options import Progress, color_option, detail_options, examples, file_option, progress_bar
from leadline.cli.output import at_work, emit, look_for, say
from leadline.records import Recipe
from leadline.report.formats import FORMATS, REPAIR_FORMATS
from leadline.report.layout import LABEL
from leadline.report.look import Look
from leadline.report.pages.repair import loss_elements
from leadline.report.render.text import render_elements

DEMO = "leadline.lab.demo:deep_mlp"
# Heuristic: enough for the repaired network to solve the task, in less than a minute.
DEFAULT_STEPS = 300


@click.command(epilog=examples("leadline demo", "leadline demo -v --html demo.html"))
@file_option("--html", "page", text="Write the report to this file instead of a temporary folder.")
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=DEFAULT_STEPS,
    show_default=True,
    help="Number of training steps for the final comparison.",
)
@detail_options
@color_option
def demo(page: Path | None, steps: int, quiet: bool, verbose: bool, no_color: bool) -> int:
    """Check a bundled network of 60 layers that does not train, repair it, and train both versions."""
    look = look_for(quiet=quiet, verbose=verbose, no_color=no_color)
    _announce(
        "A network of 60 ReLU layers with PyTorch's default initialization should separate two spirals.\n"
        f"Running: leadline check {DEMO}\n",
        quiet=quiet,
    )
    with at_work(quiet=quiet):
        _use_one_thread()
        report = check_target(DEMO, seed=0)
    emit(FORMATS["text"]([report], look))
    _announce(f"\nRunning: leadline fix {DEMO}\n", quiet=quiet)
    with progress_bar(quiet=quiet) as progress:
        repaired = repair_target(DEMO, BUDGET, seed=0, progress=progress)
    emit(REPAIR_FORMATS["text"](repaired.report, look))
    _announce(f"\nTraining both for at most {steps} steps in a plain loop\n", quiet=quiet)
    with progress_bar(quiet=quiet) as progress:
        emit(_race(repaired.recipe, steps, progress, look))
    path = page or Path(tempfile.mkdtemp(prefix="leadline-")) / "demo.html"
    repaired.to_html(path)
    _announce(
        f"\nThe report as an HTML page: {path}\nA healthy counterpart: leadline check {TRAINABLE_DEMO}",
        quiet=quiet,
    )
    return FINE


def _announce(text: str, *, quiet: bool) -> None:
    if not quiet:
        say(text)


def _use_one_thread() -> None:
    """Layers of 64 units gain nothing from several threads, which wait for each other on a busy machine."""
    # Imported here so that the command starts without torch.
    import torch

    torch.set_num_threads(1)


def _race(recipe: Recipe, steps: int, progress: Progress | None, look: Look) -> str:
    """Train both networks in a plain loop. Return their loss curves and accuracies as text."""
    # Imported here so that the command starts without torch.
    from leadline.lab.demo import compare_training

    trial, right = compare_training(recipe, steps, progress)
    accuracy = f"{'accuracy':<{LABEL}}{right[0]:.0%} of the points untreated, {right[1]:.0%} repaired\n"
    return render_elements(loss_elements(trial), look) + accuracy
