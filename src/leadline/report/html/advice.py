"""What to do: verified fixes with their code, else what the findings and the measured step ask for."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from leadline.records import Outcome, Update
from leadline.records.repair import RepairReport
from leadline.records.report import Report
from leadline.report.repair import REACHES
from leadline.report.verdict import rooted
from leadline.text import clean, number, quoted


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One thing to do: in words, what it costs, and lines to paste."""

    title: str
    cost: str = ""
    code: str = ""
    why: str = ""


def advice_of(report: Report, repair: RepairReport | None) -> list[Advice]:
    """The fixes that were kept; where none was, the roots, and the rate if the step asks for another."""
    kept = [each for each in repair.outcomes if each.kept] if repair is not None else []
    if kept:
        return [_fixed(each) for each in kept]
    roots = [
        Advice(title=f"{root.code} {clean(root.name)}", why=clean(root.message))
        for root, _ in rooted(report.findings)
        if root.severity != "info" and not root.known
    ]
    update = report.profile.update
    return roots + ([] if update is None else _rate(update))


def _fixed(outcome: Outcome) -> Advice:
    return Advice(
        title=clean(outcome.title),
        cost=f"{outcome.state}; {REACHES[outcome.reach]}",
        code=outcome.code,
        why=clean(outcome.why),
    )


def _rate(update: Update) -> list[Advice]:
    """A lower rate or a warm-up, where the step breaks its promise at the present one."""
    if update.safe_lr is None or update.lr is None or update.safe_lr_is_bound or update.safe_lr >= update.lr:
        return []
    warm = f", or warm up over {update.warmup_steps} steps" if update.warmup_steps else ""
    return [
        Advice(
            title=f"lower the rate from {number(update.lr)} to {number(update.safe_lr)}{warm}",
            cost="changes how it is trained",
            why=f"beyond {number(update.safe_lr)} one step loses half of what its gradient promises "
            f"({update.confidence} confidence: {clean(update.confidence_why)})",
        )
    ]


def commands_of(report: Report) -> str:
    """Commands for the shell that go on from here."""
    lines = []
    if report.findings and report.target and report.course is None and not report.profile.predicted:
        lines.append(f"leadline fix {quoted(report.target)}")
    roots = [clean(root.code) for root, _ in rooted(report.findings)]
    lines += [f"leadline explain {shlex.quote(code)}" for code in dict.fromkeys(roots)][:3]
    return "\n".join(lines) or "leadline rules"


def reproduced_by(report: Report) -> str:
    """What makes this page again."""
    if report.target:
        flags = " --no-weights" if report.profile.predicted and not report.target.endswith(".json") else ""
        return f"leadline check {quoted(report.target)}{flags} --html report.html"
    if report.profile.predicted:
        return 'report = leadline.predict(build)\nreport.to_html("report.html")'
    arguments = "model, inputs, targets, loss" + (", optimizer" if report.profile.optimizer else "")
    return f'report = leadline.check({arguments})\nreport.to_html("report.html")'
