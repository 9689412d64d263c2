"""`leadline fixes`: what can be tried, and for which findings."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import asdict

import click

from leadline.cli.catalogue import Page, all_pages
from leadline.cli.options import FINE, examples
from leadline.cli.output import emit
from leadline.report.mending import REACHES


@click.command(
    epilog=examples("leadline fixes", "leadline fixes --format json", "leadline explain critical-init")
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def fixes(form: str) -> int:
    """List the fixes: name, what each reaches, and what it does."""
    rows = [{**asdict(page), "summary": page.summary} for page in all_pages()]
    for row in rows:
        del row["doc"]
    emit(json.dumps(rows, indent=2) + "\n" if form == "json" else _table(all_pages()))
    return FINE


def _table(found: Sequence[Page]) -> str:
    names = max((len(each.name) for each in found), default=0)
    reaches = max(map(len, REACHES.values()))
    width = max(shutil.get_terminal_size().columns, names + reaches + 30)
    rows = []
    for each in found:
        head = f"{each.name:<{names + 2}}{REACHES[each.reach]:<{reaches + 2}}"
        rows.append(
            textwrap.fill(each.summary, width, initial_indent=head, subsequent_indent=" " * len(head))
        )
    return "".join(f"{row}\n" for row in rows)
