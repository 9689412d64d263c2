"""Test `leadline.forecast`: exponents of every scheme and along width, and training on both sides of a limit.

    python -m benchmarks.forecast                 measure cases without a result, fill docs/explanation/update.md
    python -m benchmarks.forecast --only width    measure only those whose names begin like this
    python -m benchmarks.forecast --quick         measure one family; print it and store nothing

Exponents: a tiny Transformer encoder has a fixed random readout, so that the gradient of the loss with respect to the
output is the same at every depth; the first step of SGD and of Adam is measured with five seeds. Depths: MLPs on
scikit-learn's digits are trained at the user's rate without warm-up, at a quarter and at four times the forecast depth.
Width: exponents are fitted on three widths and compared with the power between the last of them and four times as much.
Results: benchmarks/results/forecast.json.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leadline
from benchmarks.result_files import ROOT, Results, fill_file, run_missing, table
from benchmarks.timing import significant
from benchmarks.update_exponents import branch_matrices
from benchmarks.update_limits import BATCH, digits, final_loss
from leadline import Case
from leadline.nn import MLP, SCHEMES, Encoder, LanguageModel, Options, param_groups
from leadline.nn.optim import Base

DEPTHS, SEEDS = (8, 16, 32), 5
WIDTH, HEADS, HIDDEN, TIME, ROWS = 32, 2, 64, 8, 4
DERIVED = {  # derived exponents of the change of the function: (SGD, Adam)
    "deepnorm": (0.0, 0.5),
    "residual-sqrt": (0.0, 0.5),
    "residual-linear": (-1.0, 0.0),
    "keel": (-1.0, 0.0),
    "deepnorm-adam": (-1.0, 0.0),
}
STEPPERS: dict[str, Callable[[Any, float], torch.optim.Optimizer]] = {
    "SGD": lambda p, lr: torch.optim.SGD(p, lr=lr),
    "SGD, momentum 0.9": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    "Adam": lambda p, lr: torch.optim.Adam(p, lr=lr),
}
FAMILY_DEPTHS, FAMILY_SEEDS = (4, 8, 16, 32), 5
STEPS, RUNS = 150, 2
# Multiples of the forecast depth.
SIDES = (0.25, 4.0)
DEEPEST, WITHOUT_LIMIT = 128, (8, 128)  # layers; if there is no limit, both depths must learn
LEARNED = 0.5  # final over initial loss that counts as learned


def encoder(scheme: str, optimizer_name: str, depth: int) -> Case:
    """Return an encoder whose optimizer holds only the matrices of the branches, as in the theorems."""
    options = Options(positions="none", hidden=HIDDEN)
    model = Encoder(WIDTH, HEADS, depth, scheme=scheme, options=options).double()
    x, readout = (torch.randn(ROWS, TIME, WIDTH, dtype=torch.float64) for _ in range(2))
    optimizer = STEPPERS[optimizer_name](branch_matrices(model), 1e-4)
    return Case(model, x, loss=lambda y: (y * readout).sum(), optimizer=optimizer)


def exponents(scheme: str, optimizer: str) -> dict[str, Any]:
    found = leadline.forecast(partial(encoder, scheme, optimizer), DEPTHS, seeds=SEEDS)
    return {
        name: {key: significant(getattr(each, key), 3) for key in ("value", "low", "high")}
        for name, each in found.exponents.items()
        if each.low is not None  # a quantity that only one seed has is not a measurement
    }


class Unscaled(nn.Module):
    """x + W2 relu(W1 x) without a scale: the second moment of the stream doubles with every block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        for layer, gain in ((self.first, 1.0), (self.second, 2.0)):
            nn.init.normal_(layer.weight, std=math.sqrt(gain / width))
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.relu(self.first(x)))


@dataclass(frozen=True, kw_only=True)
class Family:
    kind: str
    optimizer: str
    rate: float
    width: int = 48

    def __str__(self) -> str:
        return f"{self.kind} | {self.optimizer} | {self.rate:g}"

    def network(self, depth: int) -> nn.Module:
        scheme, _, activation = self.kind.partition(" ")
        if scheme in SCHEMES:
            return MLP(64, self.width, depth, 10, scheme=scheme, activation=activation)
        inner: list[nn.Module] = [nn.Linear(64, self.width)]
        for _ in range(depth):
            if scheme == "unscaled":
                inner.append(Unscaled(self.width))
            else:
                inner += [nn.ReLU() if activation == "relu" else nn.Tanh(), nn.Linear(self.width, self.width)]
        return nn.Sequential(*inner, nn.Linear(self.width, 10))

    def build(self, depth: int) -> Case:
        x, y = digits()
        model = self.network(depth)
        optimizer = STEPPERS[self.optimizer](model.parameters(), self.rate)
        return Case(model, x[:BATCH], y[:BATCH], F.cross_entropy, optimizer)


FAMILIES = [
    Family(kind="none relu", optimizer="SGD", rate=0.34),
    Family(kind="none relu", optimizer="SGD, momentum 0.9", rate=0.034),
    Family(kind="none relu", optimizer="Adam", rate=0.014),
    Family(kind="none tanh", optimizer="SGD", rate=1.5),
    Family(kind="none tanh", optimizer="Adam", rate=0.064),
    Family(kind="default relu", optimizer="Adam", rate=0.001),
    Family(kind="default tanh", optimizer="SGD", rate=0.1),
    Family(kind="unscaled", optimizer="SGD", rate=0.01),
    Family(kind="post relu", optimizer="SGD", rate=0.11),
    Family(kind="post relu", optimizer="Adam", rate=0.012),
    Family(kind="residual-sqrt relu", optimizer="SGD", rate=0.1),
    Family(kind="residual-linear relu", optimizer="Adam", rate=0.003),
]


def both_sides(family: Family) -> dict[str, Any]:
    found = leadline.forecast(family.build, FAMILY_DEPTHS, seeds=FAMILY_SEEDS)
    cause = next((limit.cause for limit in found.limits if limit.cause != "promise"), None)
    depths: tuple[int, ...] = () if found.undecided else WITHOUT_LIMIT
    if found.max_depth is not None:
        depths = tuple(min(max(round(side * found.max_depth), 1), DEEPEST) for side in SIDES)
    ends = {str(depth): [_end(family, depth, seed) for seed in range(RUNS)] for depth in depths}
    return {
        "max_depth": found.max_depth,
        "undecided": found.undecided,
        "low": found.max_depth_low,
        "high": found.max_depth_high,
        "cause": cause,
        "safe_depth": found.safe_depth,
        "ends": ends,
    }


def _end(family: Family, depth: int, seed: int) -> float | str:
    """Return the final loss as a share of the initial loss."""
    torch.manual_seed(seed)
    model = family.network(depth)
    x, y = digits()
    with torch.no_grad():
        start = F.cross_entropy(model(x), y).item()
    end = final_loss(model, STEPPERS[family.optimizer](model.parameters(), family.rate), x, y, STEPS)
    share = end / min(start, math.log(10)) if math.isfinite(start) else math.inf
    return significant(share, 3) if math.isfinite(share) else "inf"


def holds(case: dict[str, Any]) -> tuple[bool, bool]:
    """Return whether the shallow network learned, and whether the deep one did what was forecast."""
    shallow, deep = (
        [isinstance(end, float) and end < LEARNED for end in ends] for ends in case["ends"].values()
    )
    return all(shallow), all(deep) if case["max_depth"] is None else not any(deep)


# Width: families whose law is derived, and one whose law is not.

WIDTHS, BEYOND, WIDTH_SEEDS = (32, 64, 128), 512, 4
VOCAB, TOKENS, BLOCKS = 64, 16, 2
WIDTH_RATE = 1e-5
WIDE = {  # derived exponents of the change of the function
    "MLP, standard, Adam": "+1 to +1.5",
    "MLP, muP, Adam": "0",
    "MLP, standard, SGD": "+1",
    "language model, standard, AdamW": "+1 to +1.5",
    "language model, `param_groups`, AdamW": "blocks 0, head +1",
    "language model, `param_groups` and head, AdamW": "0 to +0.5",
    "transformers GPT-2, AdamW": "",
}


def wide_mlp(name: str, width: int) -> Case:
    """A plain ReLU network; muP divides the rates of all matrices but the first, and the head's start, by width."""
    generator = torch.Generator().manual_seed(torch.initial_seed())
    x = torch.randn(64, 16, generator=generator)
    y = torch.randint(16, (64,), generator=generator)
    sizes = [16, width, width, width, 16]
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        layer = nn.Linear(fan_in, fan_out)
        is_mup_head = "muP" in name and len(layers) == 6
        nn.init.normal_(layer.weight, std=1 / fan_in if is_mup_head else math.sqrt(2 / fan_in))
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    matrices = [p for key, p in model.named_parameters() if p.ndim > 1 and not key.startswith("0.")]
    others = [p for p in model.parameters() if all(p is not each for each in matrices)]
    rate = WIDTH_RATE * (WIDTHS[0] / width if "muP" in name else 1.0)
    groups = [{"params": matrices, "lr": rate}, {"params": others, "lr": WIDTH_RATE}]
    optimizer = torch.optim.SGD(groups) if "SGD" in name else torch.optim.Adam(groups)
    return Case(model, x, y, F.cross_entropy, optimizer)


def wide_language_model(name: str, width: int) -> Case:
    generator = torch.Generator().manual_seed(torch.initial_seed())
    tokens = torch.randint(VOCAB, (8, TOKENS + 1), generator=generator)
    if name.startswith("transformers"):
        # Imported here because only this family needs it.
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=VOCAB,
            n_positions=TOKENS + 1,
            n_embd=width,
            n_layer=BLOCKS,
            n_head=2,
            use_cache=False,
            bos_token_id=None,
            eos_token_id=None,
        )
        network = GPT2LMHeadModel(config)
        adamw = torch.optim.AdamW(network.parameters(), lr=WIDTH_RATE)
        return Case(network, {"input_ids": tokens, "labels": tokens}, optimizer=adamw)
    model = LanguageModel(VOCAB, width, 2, BLOCKS, scheme="residual-linear", max_len=TOKENS)
    groups: Any = model.parameters()
    if "param_groups" in name:
        groups = param_groups(model, None, "adamw", lr=WIDTH_RATE, base=Base(width=WIDTHS[0]))
    if "head" in name:
        head = model.head.weight
        for group in groups:
            group["params"] = [p for p in group["params"] if p is not head]
        groups.append({"params": [head], "lr": WIDTH_RATE * WIDTHS[0] / width})
    optimizer = torch.optim.AdamW(groups, lr=WIDTH_RATE)
    return Case(model, tokens[:, :-1], tokens[:, 1:], _token_loss, optimizer)


def _token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def beyond_the_fit(name: str) -> dict[str, Any]:
    make = wide_mlp if name.startswith("MLP") else wide_language_model

    def build(width: int) -> Case:
        return make(name, width)

    fitted = leadline.forecast(build, widths=WIDTHS, seeds=WIDTH_SEEDS).laws[0]
    wider = leadline.forecast(build, widths=(WIDTHS[-1], BEYOND), seeds=WIDTH_SEEDS).laws[0]
    quantities = ("function_change", "blocks_change", "safe_rate", "hidden_update", "output_update")
    return {
        "fitted": {key: _stored(fitted.exponents.get(key)) for key in quantities},
        "beyond": {key: _stored(wider.exponents.get(key)) for key in quantities},
        "rules": {rule.setting: significant(rule.power, 3) for rule in fitted.rules if rule.power},
    }


def _stored(exponent: Any) -> dict[str, float] | None:
    if exponent is None or exponent.low is None:
        return None
    return {key: significant(getattr(exponent, key), 3) for key in ("value", "low", "high")}


def render_widths(results: Results) -> str:
    rows = []
    for name, derived in WIDE.items():
        case = results["cases"].get(f"width | {name}")
        if case is None:
            continue
        change, safe = ([_cell(case[part][key]) for part in ("fitted", "beyond")] for key in SHOWN)
        said = "; ".join(
            f"{setting.replace('learning ', '')} {power:+.2f}" for setting, power in _rates(case)
        )
        rows.append([name, derived, *change, *safe, said or "none"])
    last = WIDTHS[-1]
    head = [
        "network",
        "derived",
        f"function, {WIDTHS[0]} to {last}",
        f"{last} to {BEYOND}",
        f"safe rate, {WIDTHS[0]} to {last}",
        f"{last} to {BEYOND}",
        "missing powers of the rates",
    ]
    return table(head, rows)


SHOWN = ("function_change", "safe_rate")


def _rates(case: dict[str, Any]) -> list[tuple[str, float]]:
    return [(setting, power) for setting, power in case["rules"].items() if setting.startswith("learning")]


def all_cases() -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the cases: families first, then schemes with derived exponents, then the other schemes."""
    sides = {f"depth | {family}": partial(both_sides, family) for family in FAMILIES}
    laws = {
        f"exponent | {scheme} | {optimizer}": partial(exponents, scheme, optimizer)
        for scheme in sorted(SCHEMES, key=lambda each: each not in DERIVED)
        for optimizer in ("SGD", "Adam")
    }
    widths = {f"width | {name}": partial(beyond_the_fit, name) for name in WIDE}
    return {**widths, **sides, **laws}


def render_exponents(results: Results) -> str:
    rows = []
    measured = {name.split(" | ")[1] for name in results["cases"] if name.startswith("exponent")}
    for scheme in [each for each in SCHEMES if each in measured]:
        cells = []
        for optimizer in ("SGD", "Adam"):
            case = results["cases"].get(f"exponent | {scheme} | {optimizer}", {})
            cells += [_cell(case.get(name)) for name in ("grad_square", "function_change")]
        derived = "{:+.1f}, {:+.1f}".format(*DERIVED[scheme]) if scheme in DERIVED else ""
        rows.append([f"`{scheme}`", derived, cells[0], cells[1], cells[3]])
    head = ["scheme", "derived: SGD, Adam", "squared gradient", "function, SGD", "function, Adam"]
    return table(head, rows)


def _cell(found: dict[str, float] | None) -> str:
    if found is None:
        return "not measured"
    return f"{found['value']:+.2f} ± {(found['high'] - found['low']) / 2:.2f}"


def render_depths(results: Results) -> str:
    rows, right, tried = [], [0, 0], 0
    for family in FAMILIES:
        case = results["cases"].get(f"depth | {family}")
        if case is None:
            continue
        if case["undecided"]:
            limit = f"undecided ({case['low']:.3g} to {case['high']:.3g})"
            rows.append([family.kind, family.optimizer, f"{family.rate:g}", limit, "", "", ""])
            continue
        tried += 1
        outcome = holds(case)
        right = [right[0] + outcome[0], right[1] + outcome[1]]
        sides = [f"{depth}: {', '.join(map(str, ends))}" for depth, ends in case["ends"].items()]
        limit = "none in sight" if case["max_depth"] is None else f"{case['max_depth']} ({case['cause']})"
        said = " / ".join("as forecast" if each else "**not as forecast**" for each in outcome)
        rows.append([family.kind, family.optimizer, f"{family.rate:g}", limit, *sides, said])
    head = ["network", "optimizer", "rate", "trains up to", "shallow side", "deep side", "shallow / deep"]
    total = f"As forecast: {right[0]} of {tried} shallow sides and {right[1]} of {tried} deep ones."
    return f"{total}\n\n{table(head, rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one family; stores nothing")
    parser.add_argument("--only", default="", help="measure only cases whose names begin with this")
    torch.set_num_threads(1)
    arguments = parser.parse_args()
    if arguments.quick:
        print(both_sides(Family(kind="default relu", optimizer="Adam", rate=0.001, width=16)))
        return
    cases = {name: measure for name, measure in all_cases().items() if name.startswith(arguments.only)}
    results = run_missing("forecast", cases, partial(print, flush=True))
    page = ROOT / "docs" / "explanation" / "update.md"
    fill_file(page, "forecast-exponents", render_exponents(results))
    fill_file(page, "forecast-depths", render_depths(results))
    fill_file(page, "forecast-widths", render_widths(results))


if __name__ == "__main__":
    main()
