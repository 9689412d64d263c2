"""Beyond which rate does training fail? Calibrates the thresholds on a first step, on really trained networks.

    python -m benchmarks.update_limits            train what has no result yet, fill docs/explanation/update.md
    python -m benchmarks.update_limits --quick    one small network; prints, stores nothing

For each network, optimizer and depth the reading finds the rate at which measured and predicted change of the loss part
by half. The network is then trained at multiples of that rate, without warm-up, on scikit-learn's digits, and judged by
how much of the loss it removed, as a share of what the best rate removed. The thresholds of `leadline.checks._steps`
were chosen with the calibration and the held-out set in sight; the fresh set, of yet other kinds, was trained once they
were fixed, and judges them.
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

STEPS = 100
BATCH, JUDGED = 64, 512
MULTIPLES = (1 / 16, 1 / 4, 1.0, 4.0, 16.0, 64.0)  # of the rate at which the first step parts by half
FARTHER = {"Adam": (256.0,)}  # Adam bears more
DEPTHS = (4, 16)
LEARNED = 0.5  # share of the best rate's fall of the loss that counts as having learned
FAILED = 0.1  # and below which it counts as having failed
OPTIMIZERS: dict[str, Callable[[list[nn.Parameter], float], torch.optim.Optimizer]] = {
    "SGD": lambda p, lr: torch.optim.SGD(p, lr=lr),
    "SGD, momentum 0.9": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    "Adam": lambda p, lr: torch.optim.Adam(p, lr=lr),
}
PROBE_RATE = 1e-3  # any: the rate of parting is found from it
CALIBRATION = ("none relu", "residual-sqrt relu", "residual-linear relu", "pre relu", "post relu")
HELD_OUT = ("none tanh", "residual-sqrt gelu", "deepnorm gelu", "transformer pre", "transformer deepnorm")
FRESH = ("none gelu", "peri tanh", "keel relu", "transformer post", "transformer residual-linear")
SPLITS = {"calibration": CALIBRATION, "held-out": HELD_OUT, "fresh": FRESH}
SUSTAINED = {"SGD, momentum 0.9": 10.0}  # steps that gradients add up to, 1 / (1 - 0.9)


class Rows(nn.Module):
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
    scheme, _, form = kind.partition(" ")
    if scheme == "transformer":
        return Rows(form, max(depth // 4, 1))
    return MLP(64, 48 if kind in HELD_OUT else 64, depth, 10, scheme=scheme, activation=form)


def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    x = torch.tensor(data.data, dtype=torch.float32)
    return (x - x.mean(0)) / (x.std(0) + 1.0), torch.tensor(data.target)


def first_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Any:
    case = Case(model, x[:BATCH], y[:BATCH], F.cross_entropy, optimizer)
    profile, _ = read_profile(trace(case.model, case.inputs, case.targets, case.loss))
    return read_update(case, profile)


def parting_rate(kind: str, depth: int, optimizer: str, x: Tensor, y: Tensor) -> float:
    """Return the rate at which measured and predicted change part, searched again until it is not a bound."""
    rate = PROBE_RATE
    for _ in range(6):
        model = network(kind, depth)
        found = first_step(model, OPTIMIZERS[optimizer](list(model.parameters()), rate), x, y)
        if found.parting is None or not found.parting:
            return rate
        rate *= found.parting
        if not found.parting_is_bound and 0.5 < found.parting < 2:
            break
    return rate


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, steps: int) -> float:
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
        return F.cross_entropy(model(x[:JUDGED]), y[:JUDGED]).item()


def measure(kind: str, depth: int, optimizer: str, *, steps: int = STEPS) -> dict[str, Any]:
    x, y = digits()
    rate = parting_rate(kind, depth, optimizer, x, y)
    with torch.no_grad():
        start = F.cross_entropy(network(kind, depth)(x[:JUDGED]), y[:JUDGED]).item()
    runs = []
    for multiple in (*MULTIPLES, *FARTHER.get(optimizer, ())):
        model = network(kind, depth)
        stepper = OPTIMIZERS[optimizer](list(model.parameters()), multiple * rate)
        seen = first_step(model, stepper, x, y)
        end = trained(model, stepper, x, y, steps)
        runs.append(
            {
                "multiple": multiple,
                "ratio": _plain(seen.ratio),
                "relative_change": _plain(seen.function_change_relative),
                "rise": _plain(seen.measured_loss_change / seen.loss),
                "end": _plain(end),
            }
        )
    ends = [run["end"] for run in runs if isinstance(run["end"], float)]
    return {
        "rate": significant(rate),
        "start": significant(start),
        "best": min(ends, default=None),
        "runs": runs,
    }


def _plain(number: float | None) -> float | str | None:
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
    found = []
    for key, case in results["cases"].items():
        kept = key.startswith(f"{split} | ") and case["best"] is not None
        if not kept or case["best"] > 0.8 * case["start"]:
            continue
        for run in case["runs"]:
            fall = case["start"] - run["end"] if isinstance(run["end"], float) else 0.0
            share = max(fall, 0.0) / (case["start"] - case["best"])
            found.append({**run, "key": key, "share": share})
    return found


def render(results: Results) -> str:
    rows = []
    for split in SPLITS:
        runs = shares(results, split)
        for multiple in MULTIPLES:
            here = [run["share"] for run in runs if run["multiple"] == multiple]
            if here:
                learned = sum(share >= LEARNED for share in here)
                failed = sum(share < FAILED for share in here)
                median = sorted(here)[len(here) // 2]
                rows.append(
                    [split, f"{multiple:g}", str(len(here)), str(learned), str(failed), f"{median:.2f}"]
                )
    page = table(["networks", "rate / rate of parting", "runs", "learned", "failed", "median share"], rows)
    return f"{page}\n\n{render_judged(results)}"


def render_judged(results: Results) -> str:
    """Return how the thresholds do by set: how many of the runs beyond each one learned."""
    rows = []
    for family, beyond in MAX_RATE_RATIO.items():
        for split in SPLITS:
            runs = [run for run in shares(results, split) if _family(run) == family]
            past = [run["share"] >= LEARNED for run in runs if _excess(run) > beyond]
            half = [
                run["share"] >= LEARNED
                for run in runs
                if HALF_FAIL_RATE_RATIO[family] < _excess(run) <= beyond
            ]
            within = [run["share"] >= LEARNED for run in runs if _excess(run) <= 1]
            cells = [f"{sum(each)} of {len(each)}" for each in (within, half, past)]
            rows.append([family, split, f"{HALF_FAIL_RATE_RATIO[family]:g}, {beyond:g}", *cells])
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
    return float(run["multiple"] * SUSTAINED.get(run["key"].rpartition(" | ")[2], 1.0))


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
