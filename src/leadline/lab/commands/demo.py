"""`leadline demo`: a bundled network that does not train, what is wrong with it, its repair, and the proof."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from leadline.cli.check import TWIN, examine
from leadline.cli.exit_codes import FINE
from leadline.cli.fix import repair_target
from leadline.cli.options import Progress, color_option, detail_options, examples, file_option, progress_bar
from leadline.cli.output import at_work, emit, look_for, say
from leadline.records import Recipe
from leadline.report.formats import FORMATS, REPAIR_FORMATS
from leadline.report.layout import LABEL, Look
from leadline.report.pages.repair import loss_elements
from leadline.report.render.text import render_elements

DEMO = "leadline.lab.demo:deep_mlp"
STEPS = 300


@click.command(epilog=examples("leadline demo", "leadline demo -v --html demo.html"))
@file_option("--html", "page", text="Write the report there, and not to the folder for temporary files.")
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=STEPS,
    show_default=True,
    help="How long both are trained in the end.",
)
@detail_options
@color_option
def demo(page: Path | None, steps: int, quiet: bool, verbose: bool, no_color: bool) -> int:
    """Check a bundled network of 60 layers that does not train, repair it, and train both."""
    look = look_for(quiet=quiet, verbose=verbose, no_color=no_color)
    _tell(
        "A network of 60 ReLU layers with PyTorch's default initialisation is to tell two spirals apart.\n"
        f"Running: leadline check {DEMO}\n",
        quiet=quiet,
    )
    with at_work(quiet=quiet):
        found = examine(DEMO, seed=0)
    emit(FORMATS["text"]([found], look))
    _tell(f"\nRunning: leadline fix {DEMO}\n", quiet=quiet)
    with progress_bar(quiet=quiet) as progress:
        repaired = repair_target(DEMO, None, seed=0, progress=progress)
    emit(REPAIR_FORMATS["text"](repaired.report, look))
    _tell(f"\nTraining both for {steps} steps, as anybody would\n", quiet=quiet)
    with progress_bar(quiet=quiet) as progress:
        emit(_race(repaired.recipe, steps, progress, look))
    path = page or Path(tempfile.mkdtemp(prefix="leadline-")) / "demo.html"
    repaired.to_html(path)
    _tell(f"\nThe report as a page: {path}\nA twin that is built right: leadline check {TWIN}", quiet=quiet)
    return FINE


def _tell(text: str, *, quiet: bool) -> None:
    if not quiet:
        say(text)


def _race(recipe: Recipe, steps: int, progress: Progress | None, look: Look) -> str:
    """Both networks in a plain training loop: the curves, and how many points each tells apart."""
    from leadline.lab.demo import race

    trial, right = race(recipe, steps, progress)
    told = f"{'right':<{LABEL}}{right[0]:.0%} of the points untreated, {right[1]:.0%} repaired\n"
    return render_elements(loss_elements(trial), look) + told
