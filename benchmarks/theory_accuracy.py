"""Measures |ln(predicted / measured)| over all ops of Hugging Face architectures at initialization.

    python -m benchmarks.theory_accuracy [--again NAME ...]

Architectures with a result are not run again. The script writes benchmarks/results/theory_accuracy.json and the tables
of docs/explanation/theory.md.
"""

from __future__ import annotations

import argparse
import logging
import math
import time
import warnings
from collections import Counter, defaultdict
from typing import Any

import torch

from benchmarks.result_files import ROOT, fill_file, load, save, table
from benchmarks.theory_models import architectures, half
from leadline.readings.theory.prediction import Prediction, first_floating, predict, predict_moments
from leadline.records import Op, Trace
from leadline.tracer.trace import trace

NAME = "theory_accuracy"
# Heuristic: the goals of the project for the 90th percentile; larger errors count as misses.
MAX_LOG_ERROR = {"forward": math.log(1.15), "backward": math.log(1.5)}
SEED = 0


def measured(trace: Trace, op: Op) -> tuple[float | None, float | None]:
    value = first_floating(trace, op)
    if value is None:
        return None, None
    stats = trace.values[value].forward, trace.values[value].backward
    return tuple(None if each is None or not 0 < each.ms < math.inf else each.ms for each in stats)  # type: ignore[return-value]


def error(predicted: float | None, seen: float | None) -> float | None:
    return math.log(predicted / seen) if predicted and seen else None


def errors(trace: Trace) -> list[tuple[Op, float | None, float | None]]:
    """Return ln(predicted / measured) of each op, forward and backward."""
    rows = []
    for op in trace.ops:
        forward, backward = measured(trace, op)
        rows.append((op, error(op.forward_ms_predicted, forward), error(op.backward_ms_predicted, backward)))
    return rows


def percentile(values: list[float], share: float) -> float | None:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else None


def summary(values: list[float]) -> dict[str, float | int | None]:
    return {"ops": len(values), "median": percentile(values, 0.5), "p90": percentile(values, 0.9)}


def own_misses(seen: Trace, found: Prediction, alone: Prediction) -> dict[str, dict[str, int]]:
    """Return the ops whose own rule misses although its inputs are measured values; other errors are inherited."""
    causes: dict[str, Counter[str]] = {"forward": Counter(), "backward": Counter()}
    for op in seen.ops:
        value = first_floating(seen, op)
        if value is None or value not in found.facts.live:
            continue
        forward, backward = measured(seen, op)
        fields = alone.forward.predicted.get(value), alone.backward.fields.get(value)
        for way, field, real in zip(causes, fields, (forward, backward), strict=True):
            miss = error(None if field is None else field.ms, real)
            if miss is not None and abs(miss) > MAX_LOG_ERROR[way]:
                causes[way][op.name] += 1
    return {way: dict(counts.most_common(8)) for way, counts in causes.items()}


def measure(name: str, build: Any) -> dict[str, Any]:
    torch.manual_seed(SEED)
    model, inputs = build()
    seen = trace(model, inputs)
    started = time.process_time()
    found = predict(seen)
    seconds = time.process_time() - started
    rows = errors(predict_moments(seen))
    live = [
        op for op in seen.ops if (value := first_floating(seen, op)) is not None and value in found.facts.live
    ]
    refused = Counter(seen.ops[op].name for op in found.forward.refusals if seen.ops[op] in live)
    return {
        "ops": len(live),
        "covered": 1 - sum(refused.values()) / max(len(live), 1),
        "without": dict(refused.most_common(8)),
        "forward": summary([abs(ahead) for _, ahead, _ in rows if ahead is not None]),
        "backward": summary([abs(back) for _, _, back in rows if back is not None]),
        "own_misses": own_misses(seen, found, predict(seen, from_measured=True)),
        "microseconds_an_op": 1e6 * seconds / max(len(seen.ops), 1),
    }


def percent(value: float | None) -> str:
    """Return an error that was measured as the logarithm of a ratio; from tenfold on, as a factor."""
    if value is None:
        return ""
    if value < math.log(10):
        return f"{100 * math.expm1(value):.1f} %"
    return f"×{math.exp(value):.0f}" if value < math.log(1e4) else f"×10^{value / math.log(10):.0f}"


def overall(cases: dict[str, Any]) -> dict[str, Any]:
    """Return medians over architectures, so that large models do not outweigh small ones."""
    good = [case for case in cases.values() if "error" not in case]
    found = {
        "architectures": len(good),
        "covered": sum(c["covered"] * c["ops"] for c in good) / sum(c["ops"] for c in good),
    }
    for way in ("forward", "backward"):
        for which in ("median", "p90"):
            values = [case[way][which] for case in good if case[way][which] is not None]
            found[f"{way}_{which}"] = percentile(values, 0.5)
    return found


def accuracy_table(cases: dict[str, Any]) -> str:
    header = ["architecture", "half", "ops", "covered", "forward median", "90th", "backward median", "90th"]
    rows = [
        [
            name,
            half(name),
            str(case["ops"]),
            f"{100 * case['covered']:.0f} %",
            percent(case["forward"]["median"]),
            percent(case["forward"]["p90"]),
            percent(case["backward"]["median"]),
            percent(case["backward"]["p90"]),
        ]
        for name, case in cases.items()
        if "error" not in case
    ]
    for part in ("seen", "held-out", "all"):
        whole = overall({name: case for name, case in cases.items() if part in ("all", half(name))})
        rows.append(
            [f"**median of {whole['architectures']}**", part, "", f"{100 * whole['covered']:.1f} %"]
            + [
                percent(whole[f"{way}_{which}"])
                for way in ("forward", "backward")
                for which in ("median", "p90")
            ]
        )
    return table(header, rows)


def causes_table(cases: dict[str, Any]) -> str:
    counts: dict[tuple[str, str], int] = defaultdict(int)
    where: dict[tuple[str, str], set[str]] = defaultdict(set)
    for name, case in cases.items():
        for way, found in case.get("own_misses", {}).items():
            for op, count in found.items():
                counts[way, op] += count
                where[way, op].add(name)
    worst = sorted(counts, key=lambda key: -counts[key])[:14]
    rows = [[way, f"`{op}`", str(counts[way, op]), str(len(where[way, op]))] for way, op in worst]
    return table(["direction", "op", "misses of its own", "in architectures"], rows)


def render(results: dict[str, Any]) -> str:
    """Return both tables of docs/explanation/theory.md."""
    counted = (
        "Ops whose own rule is off by more than 15 % forward or 50 % backward while reading measured values:"
    )
    return f"{accuracy_table(results['cases'])}\n\n{counted}\n\n{causes_table(results['cases'])}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--again", nargs="*", default=[], help="architectures to run again; 'all' for every one"
    )
    again = parser.parse_args().again
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    results = load(NAME)
    for name, build in architectures():
        if name in results["cases"] and not {name, "all"} & set(again):
            continue
        try:
            results["cases"][name] = case = measure(name, build)
            print(
                name,
                percent(case["forward"]["median"]),
                percent(case["forward"]["p90"]),
                percent(case["backward"]["median"]),
                percent(case["backward"]["p90"]),
                f"{case['covered']:.3f}",
                flush=True,
            )
        except (ImportError, AttributeError, TypeError, ValueError, RuntimeError, KeyError) as failure:
            results["cases"][name] = {"error": f"{type(failure).__name__}: {failure}"[:200]}
            print(name, results["cases"][name]["error"], flush=True)
        save(NAME, results)
    fill_file(ROOT / "docs" / "explanation" / "theory.md", NAME, render(results))
    for part in ("seen", "held-out", "all"):
        cases = {name: case for name, case in results["cases"].items() if part in ("all", half(name))}
        print(part, overall(cases))


if __name__ == "__main__":
    main()
