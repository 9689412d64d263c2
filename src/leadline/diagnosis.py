"""From a model to a Report: trace it, read the trace, ask every rule, and judge."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn

from leadline import __version__
from leadline.case import Inputs, Loss
from leadline.readings import read
from leadline.records import Coverage, Finding, Profile, Verdict
from leadline.report import Report
from leadline.rules import Rule, all_rules
from leadline.symmetry.reading import read_symmetry
from leadline.theory import predict_with_account
from leadline.tracing import trace

_RANK = {"error": 0, "warning": 1, "info": 2}


def check(
    model: nn.Module,
    inputs: Inputs,
    targets: Any = None,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    rules: Sequence[Rule] = (),
) -> Report:
    """Trace the model once and report what is wrong with it. The model is left exactly as found.

    Arguments are those of `leadline.Case`; `rules` are asked in addition to the built-in ones.

    >>> import leadline, torch
    >>> report = leadline.check(torch.nn.Linear(4, 1), torch.randn(8, 4), loss=lambda y: y.square().mean())
    >>> report.verdict
    'trains'
    """
    seen, theory = predict_with_account(trace(model, inputs, targets, loss, optimizer))
    profile, coverage = read(seen)
    profile = replace(profile, symmetry=read_symmetry(seen), theory=theory)
    asked = (*all_rules(), *rules)
    findings = ask(asked, profile)
    return Report(
        leadline=__version__,
        verdict=judge(profile, coverage, findings),
        findings=findings,
        profile=profile,
        coverage=coverage,
        rules=tuple(each.asked(findings) for each in asked),
        sources={module.path: module.source for module in seen.modules if module.source is not None},
    )


def without(report: Report, codes: Collection[str]) -> Report:
    """The report as it would be without the rules of these codes: what they found is kept apart and not judged."""
    counted = tuple(finding for finding in report.findings if finding.code not in codes)
    ignored = tuple(finding for finding in report.findings if finding.code in codes)
    return replace(
        report,
        findings=counted,
        ignored=(*report.ignored, *ignored),
        verdict=judge(report.profile, report.coverage, counted),
    )


def ask(rules: Sequence[Rule], profile: Profile) -> tuple[Finding, ...]:
    """What all rules find, worst first; numbers that are no numbers come before whatever they make other rules say."""
    found = [finding for rule in rules for finding in rule(profile)]
    return tuple(
        sorted(found, key=lambda each: (_RANK[each.severity], not each.code.startswith("N"), each.code))
    )


def judge(profile: Profile, coverage: Coverage, findings: Sequence[Finding]) -> Verdict:
    """An error means it fails, a warning that it trains poorly; without a measured depth axis nothing can be said."""
    if any(finding.severity == "error" for finding in findings):
        return "fails"
    measured = [b for b in profile.blocks if b.forward_ms is not None and b.backward_ms is not None]
    if not measured or not coverage.backward:
        return "undecided"
    return "poor" if any(finding.severity == "warning" for finding in findings) else "trains"
