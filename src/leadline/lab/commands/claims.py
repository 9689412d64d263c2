"""`leadline lab`: list the claims of the articles and run them as experiments."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from leadline import __version__
from leadline.cli.exit_codes import FINE, FOUND
from leadline.cli.options import (
    Progress,
    color_option,
    detail_options,
    examples,
    html_option,
    output_option,
    progress_bar,
)
from leadline.cli.output import emit, look_for, say
from leadline.lab.articles import find_code
from leadline.lab.claims_page import DISAGREES, LAB_FORMATS
from leadline.records import Lab
from leadline.report.formula import in_signs


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRow:
    """One row of `leadline lab list`."""

    code: str
    verdict: str
    """The published verdict."""
    slow: bool
    claim: str


def list_claim_rows() -> list[ClaimRow]:
    """Return every claim, in the order of the articles."""
    # Imported here so that the other commands start without torch.
    from leadline.lab.claim import all_claims

    return [
        ClaimRow(code=each.code, verdict=each.verdict, slow=each.slow, claim=each.summary)
        for each in all_claims()
    ]


@click.command("list", epilog=examples("leadline lab list", "leadline lab list --json"))
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def list_claims(as_json: bool) -> int:
    """List the claims: code (S0 to S4 is the article), published verdict, cost, and the claim itself."""
    rows = list_claim_rows()
    if as_json:
        emit(json.dumps([asdict(each) for each in rows], indent=2, ensure_ascii=False) + "\n")
    else:
        emit(_table(rows))
    return FINE


def _table(claims: list[ClaimRow]) -> str:
    width = max(shutil.get_terminal_size().columns, 70)
    rows = []
    for each in claims:
        head = f"{each.code:<7}{each.verdict:<24}{'slow' if each.slow else 'quick':<7}"
        text = in_signs(each.claim)
        rows.append(textwrap.fill(text, width, initial_indent=head, subsequent_indent=" " * len(head)))
    return "".join(f"{row}\n" for row in rows)


@click.command(
    "run",
    epilog=examples(
        "leadline lab run S0-7",
        "leadline lab run S2-10 S2-11 -v",
        "leadline lab run --all --html lab.html",
        "leadline lab run --all --json --output lab.json",
    ),
)
@click.argument("codes", nargs=-1, metavar="[CODE]...")
@click.option("--all", "everything", is_flag=True, help="Run every claim; this takes about two minutes.")
@click.option("--quick", is_flag=True, help="With --all: skip the slow claims.")
@click.option(
    "--seeds",
    type=click.IntRange(min=2),
    help="Number of runs per experiment, instead of each claim's own number.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the results as JSON; `leadline report` can read them."
)
@output_option
@html_option
@detail_options
@color_option
def run_selected(
    codes: tuple[str, ...],
    everything: bool,
    quick: bool,
    seeds: int | None,
    as_json: bool,
    output: Path | None,
    page: Path | None,
    quiet: bool,
    verbose: bool,
    no_color: bool,
) -> int:
    """Run claims as experiments and compute their verdicts.

    Each experiment measures what the article predicts and what Leadline says is true instead. The verdict follows
    from these measurements.

    Exit codes: 0 all verdicts are as published; 1 a verdict differs from the published one; 2 wrong usage or an error.
    """
    look = look_for(quiet=quiet, verbose=verbose, no_color=no_color or output is not None)
    selected = _select(codes, everything=everything, quick=quick)
    with progress_bar(quiet=quiet, first="claims") as progress:
        results = _run(selected, seeds, progress)
    if page is not None:
        emit(LAB_FORMATS["html"](results, look), page)
    emit(LAB_FORMATS["json" if as_json else "text"](results, look), output)
    return _exit_code(results)


def _select(codes: tuple[str, ...], *, everything: bool, quick: bool) -> list[str]:
    known = list_claim_rows()
    if bool(codes) == everything:
        raise click.UsageError("name the claims to run (`leadline lab list` shows them), or use --all")
    if everything:
        return [each.code for each in known if not (quick and each.slow)]
    return list(dict.fromkeys(find_code(code, [each.code for each in known]) for code in codes))


def _run(codes: list[str], seeds: int | None, progress: Progress | None) -> Lab:
    """Run the claims. What experiments print goes to stderr."""
    # Imported here so that the other commands start without torch.
    from leadline.lab.claim import all_claims, run_claims

    by_code = {each.code: each for each in all_claims()}
    with redirect_stdout(sys.stderr):
        return run_claims([by_code[code] for code in codes], __version__, seeds, progress)


def _exit_code(lab: Lab) -> int:
    wrong = [each for each in lab.experiments if not each.agrees]
    for each in wrong:
        say(f"{DISAGREES}: {each.code} is {each.verdict}, published as {each.published}")
    return FOUND if wrong else FINE


@click.group(
    commands={"list": list_claims, "run": run_selected},
    epilog=examples("leadline lab list", "leadline lab run S0-7", "leadline lab run --all --html lab.html"),
)
def lab() -> None:
    """Test the claims of four articles on deep networks by experiment."""
