"""What is stored of each problem: its label, Leadline's verdict as last published, and the baselines that fired."""

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
    """Where the labels of the problems drawn from that seed are kept."""
    return LABEL_FILE if seed == SEED else f"{LABEL_FILE}_{seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Labeled:
    """A problem with what happened when it was trained. Numbers that are not finite are None."""

    problem: Problem
    label: Label
    progress: float | None
    """Within the budget."""
    final_progress: float | None
    """In all the steps it was given."""
    first_loss: float | None
    last_loss: float | None
    steps: int
    seconds: float
    """Of one core."""

    @property
    def failed(self) -> bool:
        return self.label in FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """Leadline's verdict, and the codes of its findings of severity warning and above."""

    verdict: str
    codes: tuple[str, ...]

    @property
    def alarm(self) -> bool:
        return self.verdict in ("fails", "poor")


Labels = dict[str, Labeled]
Verdicts = dict[str, Said]
Fired = dict[str, list[str]]
"""Names of the baselines that predicted trouble."""


def label_to_json(case: Labeled) -> dict[str, Any]:
    """The case as JSON values; fields of the problem at their defaults are left out."""
    fields = {name: getattr(case, name) for name in case.__dataclass_fields__}
    return fields | {"problem": to_dict(case.problem)}


def load_labels(half: Half | None = None, seed: int = SEED) -> Labels:
    """The labeled cases drawn from that seed, of one half or of both."""
    found = {
        key: Labeled(**case | {"problem": from_dict(case["problem"])})
        for key, case in load(label_file(seed))["cases"].items()
    }
    return {key: case for key, case in found.items() if half in (None, case.problem.half)}


def verdict_to_json(said: Said) -> dict[str, Any]:
    return asdict(said)


def load_verdicts() -> Verdicts:
    """Leadline's verdicts as last published."""
    cases = load(VERDICT_FILE)["cases"]
    return {key: Said(verdict=case["verdict"], codes=tuple(case["codes"])) for key, case in cases.items()}


def load_fired() -> Fired:
    """The baselines that fired, for every case they were asked of."""
    found: Fired = load(BASELINE_FILE)["cases"]
    return found
