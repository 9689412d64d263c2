"""Fit the probability that a training works to the outcomes of the calibration families."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.atlas.scores import Row
from benchmarks.result_files import ROOT
from leadline.checks._probability import FITTED_MODEL, FittedModel, predict

Matrix = NDArray[np.float64]

MODEL_FILE = ROOT / "src" / "leadline" / "checks" / FITTED_MODEL
PRIOR_DEVIATION = 1.0
"""Standard deviation of a weight before any data, for quantities scaled to unit deviation."""
NEWTON_STEPS = 50


def usable(rows: Iterable[Row]) -> list[Row]:
    """Rows with quantities and an outcome; those whose question is wrong are judged by their findings."""
    return [
        row
        for row in rows
        if row.answer.get("quantities") and row.outcome != "borderline" and not row.asks_wrongly
    ]


def fit(rows: Sequence[Row]) -> FittedModel:
    """A logistic model by maximum posterior, with the covariance of its weights."""
    names = list(rows[0].answer["quantities"])
    values = np.array([[row.answer["quantities"][name] for name in names] for row in rows])
    outcomes = np.array([not row.fails for row in rows], dtype=float)
    mean, deviation = values.mean(0), values.std(0) + 1e-9
    design = np.column_stack([np.ones(len(rows)), (values - mean) / deviation])
    weights, covariance = _posterior(design, outcomes)
    back = np.diag(np.concatenate([[1.0], 1 / deviation]))
    back[0, 1:] = -mean / deviation
    plain, spread = back @ weights, back @ covariance @ back.T
    return FittedModel(
        bias=_rounded(plain[0]),
        weights={name: _rounded(weight) for name, weight in zip(names, plain[1:], strict=True)},
        covariance=[[_rounded(each) for each in row] for row in spread],
    )


def _posterior(design: Matrix, outcomes: Matrix) -> tuple[Matrix, Matrix]:
    prior = np.eye(design.shape[1]) / PRIOR_DEVIATION**2
    prior[0, 0] = 1e-6
    weights = np.zeros(design.shape[1])
    for _ in range(NEWTON_STEPS):
        chance = 1 / (1 + np.exp(-design @ weights))
        hessian = (design * (chance * (1 - chance))[:, None]).T @ design + prior
        weights = weights - np.linalg.solve(hessian, design.T @ (chance - outcomes) + prior @ weights)
    return weights, np.linalg.inv(hessian)


def leave_one_family_out(rows: Sequence[Row]) -> list[tuple[Row, float]]:
    """Each row with the probability that a model gives it which was fitted without its family."""
    predicted = []
    for family in sorted({row.family for row in rows}):
        model = fit([row for row in rows if row.family != family])
        predicted += [
            (row, predict(row.answer["quantities"], model).probability)
            for row in rows
            if row.family == family
        ]
    return predicted


def write(model: FittedModel) -> None:
    MODEL_FILE.write_text(json.dumps(model._asdict(), indent=1) + "\n")


def summary(rows: Sequence[Row]) -> str:
    """Figures of the fit, each family predicted by the others."""
    predicted = leave_one_family_out(rows)
    failed = [chance for row, chance in predicted if row.fails]
    reached = [chance for row, chance in predicted if not row.fails]
    caught, alarms = sum(each < 0.5 for each in failed), sum(each < 0.5 for each in reached)
    brier = sum((chance - (not row.fails)) ** 2 for row, chance in predicted) / len(predicted)
    return (
        f"{len(predicted)} problems, each family left out once: Brier {brier:.3f}, "
        f"caught {caught} of {len(failed)}, false alarms {alarms} of {len(reached)}"
    )


def _rounded(value: Any) -> float:
    number = float(value)
    return float(f"{number:.4g}") if math.isfinite(number) else 0.0
