"""The stored results of each problem: its label, Leadline's last published verdict, and the baselines that fired."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from benchmarks.result_files import load
from benchmarks.verdicts.problem import Half, Problem, from_dict, to_dict
from benchmarks.verdicts.problem_sample import SEED

Label = Literal["reached", "stuck", "diverged", "borderline"]
LABELS: tuple[Label, ...] = ("reached", "stuck", "diverged", "borderline")
FAILED = ("stuck", "diverged")

LABEL_FILE, VERDICT_FILE, BASELINE_FILE = "verdict_labels", "verdicts", "verdicts_baselines"


def label_file(seed: int) -> str:
    """Name of the result file with the labels of the problems of that seed."""
    return LABEL_FILE if seed == SEED else f"{LABEL_FILE}_{seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabeledProblem:
    """A problem and how its training went. Non-finite numbers are None."""

    problem: Problem
    label: Label
    progress: float | None
    """Within the budget."""
    final_progress: float | None
    """After all steps, which may be more than the budget."""
    first_loss: float | None
    last_loss: float | None
    steps: int
    seconds: float
    """Processor time on one core."""

    @property
    def failed(self) -> bool:
        return self.label in FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredVerdict:
    """Leadline's verdict, and the codes of its findings of severity warning and above."""

    verdict: str
    codes: tuple[str, ...]

    @property
    def alarm(self) -> bool:
        return self.verdict in ("fails", "poor")


Labels = dict[str, LabeledProblem]
Verdicts = dict[str, StoredVerdict]
FiredBaselines = dict[str, list[str]]
"""Names of the baselines that predicted trouble."""


def label_to_json(case: LabeledProblem) -> dict[str, Any]:
    """The case as JSON values; fields of the problem at their defaults are left out."""
    fields = {name: getattr(case, name) for name in case.__dataclass_fields__}
    return fields | {"problem": to_dict(case.problem)}


def load_labels(half: Half | None = None, seed: int = SEED) -> Labels:
    """The labeled problems of that seed, of one half or of both."""
    labels = {
        key: LabeledProblem(**case | {"problem": from_dict(case["problem"])})
        for key, case in load(label_file(seed))["cases"].items()
    }
    return {key: case for key, case in labels.items() if half in (None, case.problem.half)}


def verdict_to_json(stored: StoredVerdict) -> dict[str, Any]:
    return asdict(stored)


def load_verdicts() -> Verdicts:
    """Leadline's verdicts as last published."""
    cases = load(VERDICT_FILE)["cases"]
    return {
        key: StoredVerdict(verdict=case["verdict"], codes=tuple(case["codes"])) for key, case in cases.items()
    }


def load_fired_baselines() -> FiredBaselines:
    """The baselines that fired, for every case that they were run on."""
    fired: FiredBaselines = load(BASELINE_FILE)["cases"]
    return fired
