"""`leadline explain`, `leadline rules` and `leadline fixes`: what is checked, why, and what can be tried."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterable

import click

from leadline.checks import Check, all_checks, find_check
from leadline.cli.exit_codes import FINE
from leadline.cli.options import color_option, examples
from leadline.cli.output import emit, look_for
from leadline.fixes import Fix, all_fixes
from leadline.report.formula import in_signs, markdown
from leadline.report.pages.repair import REACH_NAMES


@click.command(
    epilog=examples(
        "leadline explain B201", "leadline explain gradient-decay", "leadline explain critical-init"
    )
)
@click.argument("rule", metavar="CODE_OR_NAME")
@color_option
def explain(rule: str, no_color: bool) -> int:
    """Explain what a check measures, why it matters and when it is wrong; or what a fix does and what it costs."""
    fix = next((fix for fix in all_fixes() if fix.name == rule.lower()), None)
    text = _check_page(find_check(rule)) if fix is None else _fix_page(fix)
    emit(markdown(text, look_for(no_color=no_color)))
    return FINE


def _check_page(check: Check) -> str:
    names = ", ".join(f"`{fix.name}`" for fix in all_fixes() if check.code.startswith(fix.answers))
    fixes = f"\n\n## Fixes that are tried for it\n{names}" if names else ""
    return f"**{check.code} {check.name}**\n\n{check.doc}{fixes}"


def _fix_page(fix: Fix) -> str:
    codes = ", ".join(check.code for check in all_checks() if check.code.startswith(fix.answers))
    return (
        f"**{fix.name}** ({REACH_NAMES[fix.reach]})\n\n{fix.doc}\n\n## Findings that it is tried for\n{codes}"
    )


format_option = click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
)


@click.command(epilog=examples("leadline rules", "leadline rules --format json"))
@format_option
def rules(form: str) -> int:
    """List the checks (T: of a training run): code, name and what each looks for."""
    checks = all_checks()
    if form == "json":
        rows = [{"code": c.code, "name": c.name, "summary": c.summary, "since": c.since} for c in checks]
        emit(json.dumps(rows, indent=2) + "\n")
    else:
        emit(_table((check.code, check.name, in_signs(check.summary)) for check in checks))
    return FINE


@click.command(
    epilog=examples("leadline fixes", "leadline fixes --format json", "leadline explain critical-init")
)
@format_option
def fixes(form: str) -> int:
    """List the fixes: name, what each changes, and what it does."""
    if form == "json":
        emit(json.dumps([_fix_row(fix) for fix in all_fixes()], indent=2) + "\n")
    else:
        emit(_table((fix.name, REACH_NAMES[fix.reach], in_signs(fix.summary)) for fix in all_fixes()))
    return FINE


def _fix_row(fix: Fix) -> dict[str, object]:
    return {
        "name": fix.name,
        "answers": fix.answers,
        "reach": fix.reach,
        "since": fix.since,
        "summary": fix.summary,
    }


def _table(rows: Iterable[tuple[str, str, str]]) -> str:
    """Two columns and a summary that is wrapped to the width of the terminal."""
    cells = list(rows)
    first, second = (max((len(row[i]) for row in cells), default=0) + 2 for i in (0, 1))
    width = max(shutil.get_terminal_size().columns, first + second + 30)
    return "".join(_table_row(*row, first, second, width) for row in cells)


def _table_row(key: str, name: str, summary: str, first: int, second: int, width: int) -> str:
    head = f"{key:<{first}}{name:<{second}}"
    return textwrap.fill(summary, width, initial_indent=head, subsequent_indent=" " * len(head)) + "\n"
