"""`leadline explain` and `leadline rules`: what is looked for, and why."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Sequence

import click

from leadline.alarms.selection import Check, all_checks, find_check
from leadline.cli.options import FINE, color_option, examples
from leadline.cli.output import emit, look_for
from leadline.report.markdown import markdown


@click.command(epilog=examples("leadline explain B201", "leadline explain gradient-decay"))
@click.argument("rule", metavar="CODE_OR_NAME")
@color_option
def explain(rule: str, no_color: bool) -> int:
    """Tell what a rule measures, why it hurts, and when it is wrong."""
    found = find_check(rule)
    look = look_for(no_color=no_color)
    emit(markdown(f"**{found.code} {found.name}**\n\n{found.doc}", look))
    return FINE


@click.command(epilog=examples("leadline rules", "leadline rules --format json"))
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def rules(form: str) -> int:
    """List the rules (T: alarms of a running training): code, name and what each looks for."""
    rows = [
        {
            "code": each.code,
            "name": each.name,
            "summary": each.summary,
            "since": each.since,
        }
        for each in all_checks()
    ]
    emit(json.dumps(rows, indent=2) + "\n" if form == "json" else _rule_table(all_checks()))
    return FINE


def _rule_table(found: Sequence[Check]) -> str:
    names = max((len(each.name) for each in found), default=0)
    width = max(shutil.get_terminal_size().columns, names + 30)
    rows = []
    for each in found:
        head = f"{each.code:<6}{each.name:<{names + 2}}"
        rows.append(
            textwrap.fill(each.summary, width, initial_indent=head, subsequent_indent=" " * len(head))
        )
    return "".join(f"{row}\n" for row in rows)
