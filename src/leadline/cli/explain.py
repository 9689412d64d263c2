"""`leadline explain`, `leadline rules` and `leadline fixes`: what is checked, why, and what can be tried."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import asdict

import click

from leadline.checks import Check, all_checks, find_check
from leadline.cli.metadata import Page, all_pages, answering
from leadline.cli.options import FINE, color_option, examples
from leadline.cli.output import emit, look_for
from leadline.report.formula import markdown
from leadline.report.repair import REACHES


@click.command(
    epilog=examples(
        "leadline explain B201", "leadline explain gradient-decay", "leadline explain critical-init"
    )
)
@click.argument("rule", metavar="CODE_OR_NAME")
@color_option
def explain(rule: str, no_color: bool) -> int:
    """Tell what a rule measures, why it hurts, and when it is wrong; or what a fix does, and what it costs."""
    fix = next((each for each in all_pages() if each.name == rule.lower()), None)
    text = _of_rule(find_check(rule)) if fix is None else _of_fix(fix)
    emit(markdown(text, look_for(no_color=no_color)))
    return FINE


def _of_rule(found: Check) -> str:
    tried = ", ".join(f"`{page.name}`" for page in answering(found.code))
    fixes = f"\n\n## Fixes that are tried for it\n{tried}" if tried else ""
    return f"**{found.code} {found.name}**\n\n{found.doc}{fixes}"


def _of_fix(found: Page) -> str:
    codes = ", ".join(each.code for each in all_checks() if each.code.startswith(found.answers))
    return f"**{found.name}** ({REACHES[found.reach]})\n\n{found.doc}\n\n## Findings that it is tried for\n{codes}"


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


# `leadline fixes`: what can be tried, and for which findings.


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
