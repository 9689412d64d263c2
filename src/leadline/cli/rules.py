"""`leadline explain` and `leadline rules`: what is looked for, and why."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Sequence
from difflib import get_close_matches

import click

from leadline.cli.options import FINE, color_option, examples, format_option
from leadline.cli.output import emit, look_for
from leadline.errors import InputError
from leadline.report.markdown import markdown
from leadline.rules import Rule, all_rules


@click.command(epilog=examples("leadline explain B201", "leadline explain gradient-decay"))
@click.argument("rule", metavar="CODE_OR_NAME")
@color_option
def explain(rule: str, no_color: bool) -> int:
    """Tell what a rule measures, why it hurts, and when it is wrong."""
    found = _find_rule(rule)
    look = look_for(no_color=no_color)
    emit(markdown(f"**{found.code} {found.name}**\n\n{found.doc}", look))
    return FINE


@click.command(epilog=examples("leadline rules", "leadline rules --format json"))
@format_option
def rules(form: str) -> int:
    """List the rules: code, name and what each looks for."""
    rows = [
        {
            "code": each.code,
            "name": each.name,
            "summary": each.summary,
            "since": each.since,
            "fixes": each.fixes,
        }
        for each in all_rules()
    ]
    emit(json.dumps(rows, indent=2) + "\n" if form == "json" else _rule_table(all_rules()))
    return FINE


def _find_rule(wanted: str) -> Rule:
    keys = {key.lower(): each for each in all_rules() for key in (each.code, each.name)}
    if wanted.lower() in keys:
        return keys[wanted.lower()]
    close = get_close_matches(wanted.lower(), keys, n=1, cutoff=0.5)
    near = keys[close[0]] if close else None
    raise InputError(
        expected="the code or name of a rule",
        got=repr(wanted),
        fix=f"did you mean {near.code} ({near.name})?" if near else "`leadline rules` lists them",
    )


def _rule_table(found: Sequence[Rule]) -> str:
    names = max((len(each.name) for each in found), default=0)
    width = max(shutil.get_terminal_size().columns, names + 30)
    rows = []
    for each in found:
        head = f"{each.code:<6}{each.name:<{names + 2}}"
        rows.append(
            textwrap.fill(each.summary, width, initial_indent=head, subsequent_indent=" " * len(head))
        )
    return "".join(f"{row}\n" for row in rows)
