"""What a run records in addition to numbers: blocks, symmetry, equilibrium, and the origin of a NaN."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import leadline
from leadline.checks._history import RunLayout
from leadline.monitor.layout import merge_labels, merge_layouts
from leadline.readings.symmetry.equilibrium import equilibrium
from leadline.records import ParamGroup


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lower, self.norm, self.upper = (
            nn.Linear(6, 6, bias=False),
            nn.LayerNorm(6, eps=0.0),
            nn.Linear(6, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.upper(torch.tanh(self.norm(self.lower(x))))


def train(model: nn.Module, *, spoil: int | None = None, steps: int = 3) -> leadline.Watch:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    torch.manual_seed(0)
    with leadline.watch(model, optimizer, every=1) as w:
        for step in range(steps):
            optimizer.zero_grad()
            if step == spoil:
                with torch.no_grad():
                    model.lower.weight.fill_(math.inf)
            w.loss(model(torch.randn(5, 6)).square().mean()).backward()
            optimizer.step()
    return w


def test_run_checks_know_block_and_equilibrium_of_a_weight_before_a_norm():
    layout = train(Normed()).history.layout
    place = layout.parameters.index("lower.weight")
    assert layout.blocks[layout.parameter_blocks[place]].startswith("lower")
    assert [name for name, free in zip(layout.parameters, layout.invariant, strict=True) if free] == [
        "lower.weight"
    ]
    group = ParamGroup(parameters=(), lr=1.0, weight_decay=0.1, options={"betas": [0.9, 0.999]})
    expected = equilibrium("AdamW", group, count=36, radius=None)
    assert layout.rotation[place] == expected.angle
    assert layout.settling[place] == expected.steps


def test_a_non_finite_value_is_reported_once_and_traced_to_its_op():
    anomalies = [event for event in train(Normed(), spoil=1).events if event.kind == "non-finite"]
    ops = [event.data["op"] for event in anomalies if "op" in event.data]
    assert ops
    assert ops[0] == "linear"
    assert sum("op" not in event.data for event in anomalies) == 1
    assert any("timeline" in event.data for event in anomalies)


def test_blocks_are_only_added_to_the_axis_at_their_position():
    assert merge_labels(("a", "c", "head"), ("a", "b", "head")) == ("a", "b", "c", "head")
    assert merge_labels((), ("a", "b")) == ("a", "b")
    assert merge_labels(("a", "b"), ("b",)) == ("a", "b")
    known = RunLayout(
        parameters=("p", "q"), blocks=("a", "c"), parameter_blocks=(0, 1), invariant=(True, False)
    )
    found = merge_layouts(known, RunLayout(parameters=("q", "r"), blocks=("b", "c"), parameter_blocks=(1, 0)))
    assert (found.blocks, found.parameter_blocks, found.invariant) == (
        ("b", "a", "c"),
        (2, 0),
        (False, False),
    )


class Growing(nn.Module):
    """Blocks that are left out at random, as stochastic depth does, and one that comes later."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.ReLU()) for _ in range(4)
        )
        self.head = nn.Linear(4, 1)
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        for at, block in enumerate(self.blocks):
            if at != self.passes % 5:
                x = x + block(x)
        return self.head(x)


def test_a_model_whose_blocks_and_parameters_come_and_go_is_watched_to_the_end(tmp_path):
    torch.manual_seed(0)
    model = Growing()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    alone = nn.Parameter(torch.zeros(3))
    with leadline.watch(model, optimizer, every=8, store=tmp_path / "run.leadline") as w:
        for step in range(100):
            if step == 20:
                optimizer.add_param_group({"params": [alone]})
            if step == 40:
                model.blocks.append(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.ReLU()))
                optimizer.add_param_group({"params": model.blocks[-1].parameters()})
            w.loss(model(torch.randn(6, 4)).square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert (w.trouble, w.step) == ("", 100)
    layout = w.history.layout
    assert len(layout.blocks) == len(set(layout.blocks))
    assert (
        len(layout.parameter_blocks) == len(layout.parameters) == len(w.history.recent("grad_norm").rows[0])
    )
    assert len(w.history.spaced("forward_ms").rows[0]) == len(layout.blocks)
    homes = {
        name: layout.blocks[home]
        for name, home in zip(layout.parameters, layout.parameter_blocks, strict=True)
        if home is not None
    }
    assert all(block.startswith(name[: len("blocks.0")]) for name, block in homes.items() if "blocks" in name)
    others = [each for each in w.events if "others now" in each.message]
    assert len(others) <= 6, "as many as new blocks and groups, and not one a pass"


def test_labels_in_another_order_are_each_kept_once():
    assert merge_labels(("a", "b", "c"), ("c", "a", "b")) == ("a", "b", "c")
    assert sorted(merge_labels(("a", "b"), ("b", "x", "a", "y"))) == ["a", "b", "x", "y"]
