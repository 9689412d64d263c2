"""`leadline lab`: the claims of the articles as experiments."""

from __future__ import annotations

import click

from leadline.cli.lab.commands import list_claims, run_chosen
from leadline.cli.options import examples


@click.group(
    commands={"list": list_claims, "run": run_chosen},
    epilog=examples("leadline lab list", "leadline lab run S0-7", "leadline lab run --all --html lab.html"),
)
def lab() -> None:
    """Run what the articles on deep networks claim, and judge it by what is measured."""


del list_claims, run_chosen  # commands of this group, and none of the program's own
