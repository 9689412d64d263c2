"""Train networks at multiples of the safe rate: calibrates the thresholds on the length of the first step.

    python -m benchmarks.update_limits            train what has no result yet, fill docs/explanation/update.md
    python -m benchmarks.update_limits --quick    one small network; prints, stores nothing

For each network, optimizer and depth, the reading finds the safe rate, at which measured and predicted change of the
loss differ by half. The network is then trained at multiples of that rate, without warm-up, on scikit-learn's digits.
A run is judged by the decrease of its loss, as a share of the decrease at the best rate. The thresholds of
`leadline.checks._steps` were chosen with the calibration and the held-out set known. The fresh set, of other kinds of
networks, was trained after they were fixed, and judges them.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from benchmarks.result_files import ROOT, Results, fill_file, run_missing, table
from benchmarks.timing import significant
from leadline import Case
from leadline.checks._steps import MAX_RATE_RATIO
from leadline.nn import MLP, Encoder, Options
from leadline.readings.limits import HALF_FAIL_RATE_RATIO
from leadline.readings.profile import read_profile
from leadline.readings.update.reading import read_update
from leadline.tracer.trace import trace

# Heuristic: enough steps to tell a rate that learns from one that does not, on samples that fit in seconds.
STEPS = 100
BATCH, EVALUATION_SAMPLES = 64, 512
# Heuristic: factors of four around the safe rate; Adam tolerates more.
RATE_MULTIPLES = (1 / 16, 1 / 4, 1.0, 4.0, 16.0, 64.0)
EXTRA_RATE_MULTIPLES = {"Adam": (256.0,)}
DEPTHS = (4, 16)
# Heuristic: decrease of the loss, as a share of what the best rate reaches, from which a run counts as learned.
MIN_LEARNED_SHARE = 0.5
# Heuristic: the share below which it counts as failed.
MAX_FAILED_SHARE = 0.1
OPTIMIZERS: dict[str, Callable[[list[nn.Parameter], float], torch.optim.Optimizer]] = {
    "SGD": lambda p, lr: torch.optim.SGD(p, lr=lr),
    "SGD, momentum 0.9": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    "Adam": lambda p, lr: torch.optim.Adam(p, lr=lr),
}
# Derived: any rate; the safe rate is searched from it.
PROBE_RATE = 1e-3
CALIBRATION = ("none relu", "residual-sqrt relu", "residual-linear relu", "pre relu", "post relu")
HELD_OUT = ("none tanh", "residual-sqrt gelu", "deepnorm gelu", "transformer pre", "transformer deepnorm")
FRESH = ("none gelu", "peri tanh", "keel relu", "transformer post", "transformer residual-linear")
SPLITS = {"calibration": CALIBRATION, "held-out": HELD_OUT, "fresh": FRESH}
# Derived: a steady gradient adds up to 1 / (1 - 0.9) steps.
MOMENTUM_GAIN = {"SGD, momentum 0.9": 10.0}


class RowTransformer(nn.Module):
    """A Transformer that reads the eight rows of a digit."""

    def __init__(self, scheme: str, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.body = Encoder(32, 2, depth, scheme=scheme, options=Options(positions="none", hidden=64))
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.embed(x.unflatten(1, (8, 8)))).mean(1))


def network(kind: str, depth: int) -> nn.Module:
    torch.manual_seed(0)
    scheme, _, variant = kind.partition(" ")
    if scheme == "transformer":
        return RowTransformer(variant, max(depth // 4, 1))
    return MLP(64, 48 if kind in HELD_OUT else 64, depth, 10, scheme=scheme, activation=variant)


def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    x = torch.tensor(data.data, dtype=torch.float32)
    return (x - x.mean(0)) / (x.std(0) + 1.0), torch.tensor(data.target)


def first_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Any:
    case = Case(model, x[:BATCH], y[:BATCH], F.cross_entropy, optimizer)
    profile, _ = read_profile(trace(case.model, case.inputs, case.targets, case.loss))
    return read_update(case, profile)


def safe_rate(kind: str, depth: int, optimizer: str, x: Tensor, y: Tensor) -> float:
    """Return the rate at which measured and predicted change differ by half; search again until it is not a bound."""
    rate = PROBE_RATE
    for _ in range(6):
        model = network(kind, depth)
        update = first_step(model, OPTIMIZERS[optimizer](list(model.parameters()), rate), x, y)
        if update.parting is None or not update.parting:
            return rate
        rate *= update.parting
        if not update.parting_is_bound and 0.5 < update.parting < 2:
            break
    return rate


def final_loss(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, steps: int) -> float:
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        batch = torch.randint(0, len(x), (BATCH,), generator=generator)
        loss = F.cross_entropy(model(x[batch]), y[batch])
        if not torch.isfinite(loss):
            return math.inf
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return F.cross_entropy(model(x[:EVALUATION_SAMPLES]), y[:EVALUATION_SAMPLES]).item()


def measure(kind: str, depth: int, optimizer: str, *, steps: int = STEPS) -> dict[str, Any]:
    x, y = digits()
    rate = safe_rate(kind, depth, optimizer, x, y)
    with torch.no_grad():
        start = F.cross_entropy(network(kind, depth)(x[:EVALUATION_SAMPLES]), y[:EVALUATION_SAMPLES]).item()
    runs = []
    for multiple in (*RATE_MULTIPLES, *EXTRA_RATE_MULTIPLES.get(optimizer, ())):
        model = network(kind, depth)
        optimizer_at_rate = OPTIMIZERS[optimizer](list(model.parameters()), multiple * rate)
        update = first_step(model, optimizer_at_rate, x, y)
        end = final_loss(model, optimizer_at_rate, x, y, steps)
        runs.append(
            {
                "multiple": multiple,
                "ratio": _json_number(update.ratio),
                "relative_change": _json_number(update.function_change_relative),
                "rise": _json_number(update.measured_loss_change / update.loss),
                "end": _json_number(end),
            }
        )
    ends = [run["end"] for run in runs if isinstance(run["end"], float)]
    return {
        "rate": significant(rate),
        "start": significant(start),
        "best": min(ends, default=None),
        "runs": runs,
    }


def _json_number(number: float | None) -> float | str | None:
    return number if number is None or math.isfinite(number) else str(number)


def all_cases() -> dict[str, Callable[[], dict[str, Any]]]:
    return {
        f"{split} | {kind} | {depth} | {optimizer}": partial(measure, kind, depth, optimizer)
        for split, kinds in SPLITS.items()
        for kind in kinds
        for depth in DEPTHS
        for optimizer in OPTIMIZERS
    }


def shares(results: Results, split: str) -> list[dict[str, Any]]:
    """Return every run of a split with its share of the best decrease; networks that never learn are left out."""
    runs = []
    for key, case in results["cases"].items():
        is_of_split = key.startswith(f"{split} | ") and case["best"] is not None
        if not is_of_split or case["best"] > 0.8 * case["start"]:
            continue
        for run in case["runs"]:
            decrease = case["start"] - run["end"] if isinstance(run["end"], float) else 0.0
            share = max(decrease, 0.0) / (case["start"] - case["best"])
            runs.append({**run, "key": key, "share": share})
    return runs


def render(results: Results) -> str:
    rows = []
    for split in SPLITS:
        runs = shares(results, split)
        for multiple in RATE_MULTIPLES:
            shares_at_rate = [run["share"] for run in runs if run["multiple"] == multiple]
            if shares_at_rate:
                learned = sum(share >= MIN_LEARNED_SHARE for share in shares_at_rate)
                failed = sum(share < MAX_FAILED_SHARE for share in shares_at_rate)
                median = sorted(shares_at_rate)[len(shares_at_rate) // 2]
                rows.append(
                    [
                        split,
                        f"{multiple:g}",
                        str(len(shares_at_rate)),
                        str(learned),
                        str(failed),
                        f"{median:.2f}",
                    ]
                )
    page = table(["networks", "rate / rate of parting", "runs", "learned", "failed", "median share"], rows)
    return f"{page}\n\n{render_limits(results)}"


def render_limits(results: Results) -> str:
    """Return, for each set of networks, how many runs learned within and beyond the thresholds."""
    rows = []
    for family, max_ratio in MAX_RATE_RATIO.items():
        for split in SPLITS:
            runs = [run for run in shares(results, split) if _family(run) == family]
            beyond = [run["share"] >= MIN_LEARNED_SHARE for run in runs if _excess(run) > max_ratio]
            between = [
                run["share"] >= MIN_LEARNED_SHARE
                for run in runs
                if HALF_FAIL_RATE_RATIO[family] < _excess(run) <= max_ratio
            ]
            within = [run["share"] >= MIN_LEARNED_SHARE for run in runs if _excess(run) <= 1]
            cells = [f"{sum(each)} of {len(each)}" for each in (within, between, beyond)]
            rows.append([family, split, f"{HALF_FAIL_RATE_RATIO[family]:g}, {max_ratio:g}", *cells])
    head = [
        "family",
        "networks",
        "limits",
        "learned within the safe rate",
        "between the limits",
        "beyond both",
    ]
    return table(head, rows)


def _family(run: dict[str, Any]) -> str:
    return "adam" if run["key"].endswith("Adam") else "sgd"


def _excess(run: dict[str, Any]) -> float:
    """Return the sustained rate over the safe one."""
    return float(run["multiple"] * MOMENTUM_GAIN.get(run["key"].rpartition(" | ")[2], 1.0))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one small network; stores nothing")
    torch.set_num_threads(1)
    if parser.parse_args().quick:
        print(measure("residual-sqrt relu", 4, "Adam", steps=5))
        return
    results = run_missing("update_limits", all_cases(), partial(print, flush=True))
    fill_file(ROOT / "docs" / "explanation" / "update.md", "update-limits", render(results))


if __name__ == "__main__":
    main()
