"""Healthy networks on inputs of unusual kinds: no exception, no wiring finding, and a reason for what was not asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import leadline
from leadline import Case
from tests.support.wiring import Function

SAMPLES = 12


def sequences(features: int) -> list[Tensor]:
    return [torch.randn(2 + index % 5, features) for index in range(SAMPLES)]


def classes(count: int = 3) -> Tensor:
    return torch.randint(0, count, (SAMPLES,))


def random_outputs() -> Case:
    def forward(self: Function, x: Tensor) -> Tensor:
        return self.decode(self.encode(x) + torch.randn(len(x), 4))

    return Case(
        Function(forward, encode=nn.Linear(6, 4), decode=nn.Linear(4, 3)),
        torch.randn(SAMPLES, 6),
        classes(),
        F.cross_entropy,
    )


def shapes_that_depend_on_data() -> Case:
    def forward(self: Function, x: Tensor) -> Tensor:
        return self.out(torch.stack([torch.tanh(self.inner(row[row[:, 0] > -9])).sum(0) for row in x]))

    layers = {"inner": nn.Linear(5, 8), "out": nn.Linear(8, 3)}
    return Case(Function(forward, **layers), torch.randn(SAMPLES, 7, 5), classes(), F.cross_entropy)


def words() -> Case:
    def forward(self: Function, texts: list[str]) -> Tensor:
        return self.out(
            torch.stack([self.letters(torch.tensor([*map(ord, text)])).mean(0) for text in texts])
        )

    layers = {"letters": nn.Embedding(128, 8), "out": nn.Linear(8, 3)}
    return Case(Function(forward, **layers), (["one", "three", "eleven"] * 4,), classes(), F.cross_entropy)


def loss_without_targets() -> Case:
    model = nn.Sequential(nn.Linear(2, 16), nn.SiLU(), nn.Linear(16, 1))
    return Case(model, torch.randn(SAMPLES, 2), loss=lambda e: (e[:6] - e[6:]).mean() + e.square().mean())


def nested_dicts() -> Case:
    def forward(self: Function, batch: dict[str, Any]) -> dict[str, Tensor]:
        image = self.image(batch["media"]["image"]).mean((2, 3))
        return {"scores": self.out(torch.cat([image, self.words(batch["ids"]).mean(1)], 1))}

    layers = {"image": nn.Conv2d(3, 4, 3), "words": nn.Embedding(20, 4), "out": nn.Linear(8, 3)}
    batch = {"media": {"image": torch.randn(SAMPLES, 3, 6, 6), "path": ["a"] * SAMPLES}, "epoch": 3}
    batch["ids"] = torch.randint(0, 20, (SAMPLES, 5))
    targets = {"label": classes(), "weight": torch.rand(SAMPLES)}

    def loss(output: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
        losses = F.cross_entropy(output["scores"], targets["label"], reduction="none")
        return (losses * targets["weight"]).mean()

    return Case(Function(forward, **layers), (batch,), targets, loss)


def ragged_lists() -> Case:
    def forward(self: Function, rows: list[Tensor]) -> Tensor:
        return torch.cat([self.out(self.rnn(row[None])[1][-1]) for row in rows])

    layers = {"rnn": nn.GRU(3, 8, batch_first=True), "out": nn.Linear(8, 1)}
    return Case(Function(forward, **layers), (sequences(3),), torch.randn(SAMPLES, 1), F.mse_loss)


def lists_of_boxes() -> Case:
    def forward(self: Function, images: list[Tensor], targets: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        cells = [self.scores(torch.relu(self.maps(image[None]))).flatten(2)[0].t() for image in images]
        near = [target["boxes"].mean() > 8 for target in targets]
        pairs = zip(cells, targets, near, strict=True)
        losses = [
            F.cross_entropy(cell, target["labels"][:1].expand(len(cell))) * (1 + n)
            for cell, target, n in pairs
        ]
        return {"class": torch.stack(losses).mean()}

    layers = {"maps": nn.Conv2d(3, 6, 3, 2), "scores": nn.Conv2d(6, 3, 1)}
    images = [torch.rand(3, 16 + 4 * (index % 3), 16) for index in range(SAMPLES)]
    boxes = [{"boxes": torch.rand(2, 4) * 16, "labels": torch.randint(0, 3, (2,))} for _ in range(SAMPLES)]
    return Case(Function(forward, **layers), (images, boxes), loss=lambda output: sum(output.values()))


def complex_numbers() -> Case:
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Parameter(torch.randn(6, 12, dtype=torch.cfloat) / 4)
            self.outer = nn.Parameter(torch.randn(12, 6, dtype=torch.cfloat) / 4)

        def forward(self, x: Tensor) -> Tensor:
            h = x @ self.inner
            return torch.complex(h.real.relu(), h.imag.relu()) @ self.outer

    x = torch.randn(SAMPLES, 6, dtype=torch.cfloat)
    return Case(Complex(), x, torch.fft.fft(x), lambda out, y: (out - y).abs().square().mean())


def sparse_graph() -> Case:
    def forward(self: Function, nodes: Tensor, adjacency: Tensor) -> Tensor:
        return self.out(torch.sparse.mm(adjacency, torch.relu(self.inner(nodes))))

    edges = torch.stack([torch.arange(SAMPLES), torch.arange(SAMPLES).roll(1)])
    adjacency = torch.sparse_coo_tensor(edges, torch.ones(SAMPLES), (SAMPLES, SAMPLES)).coalesce()
    layers = {"inner": nn.Linear(5, 8), "out": nn.Linear(8, 3)}
    return Case(Function(forward, **layers), (torch.randn(SAMPLES, 5), adjacency), classes(), F.cross_entropy)


def packed_sequences() -> Case:
    def forward(self: Function, packed: PackedSequence) -> Tensor:
        return self.out(self.rnn(packed)[0].data)

    rows = sorted(sequences(4), key=len, reverse=True)
    layers = {"rnn": nn.LSTM(4, 8, bidirectional=True), "out": nn.Linear(16, 2)}
    targets = pack_sequence([(row[:, 0] > 0).long() for row in rows])
    return Case(
        Function(forward, **layers),
        (pack_sequence(rows),),
        targets,
        lambda out, wanted: F.cross_entropy(out, wanted.data),
    )


def jagged_tensors() -> Case:
    def forward(self: Function, rows: Tensor) -> Tensor:
        return self.out(torch.stack([row.mean(0) for row in torch.relu(self.inner(rows)).unbind()]))

    layers = {"inner": nn.Linear(4, 8), "out": nn.Linear(8, 3)}
    rows = torch.nested.nested_tensor(sequences(4), layout=torch.jagged)
    return Case(Function(forward, **layers), (rows,), classes(), F.cross_entropy)


CASES: dict[Callable[[], Case], str] = {
    random_outputs: "",
    shapes_that_depend_on_data: "",
    words: "no input is a tensor",
    loss_without_targets: "",
    nested_dicts: "",
    ragged_lists: "a list of 12 tensors, and each of them may be one sample",
    lists_of_boxes: "a list of 12 tensors, and each of them may be one sample",
    complex_numbers: "",
    sparse_graph: "may connect them",
    packed_sequences: "packed sequence",
    jagged_tensors: "no input is a tensor",
}
"""What is said under "not checked"; nothing where every question can be asked."""


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize(
    "build",
    # the first jagged tensor of a process loads torch's symbolic shapes, which takes six seconds
    [pytest.param(each, marks=pytest.mark.slow) if each is jagged_tensors else each for each in CASES],
    ids=lambda build: build.__name__,
)
def test_a_healthy_network_on_unusual_inputs_has_no_wiring_finding(build: Callable[[], Case]):
    torch.manual_seed(0)
    report = leadline.check(build())
    assert [each for each in report.findings if each.code.startswith("D") and each.severity != "info"] == []
    gaps = [gap.why for gap in report.coverage.gaps if gap.what == "whether samples are independent"]
    assert [reason for reason in gaps if CASES[build] not in reason] == []
    assert bool(gaps) == bool(CASES[build])


def test_a_list_of_views_with_one_row_per_sample_is_probed():
    model = Function(lambda self, views: self.a(views[0]) + self.a(views[1]).mean(0), a=nn.Linear(6, 3))
    views = [torch.randn(SAMPLES, 6), torch.randn(SAMPLES, 6)]
    report = leadline.check(model, (views,), classes(), F.cross_entropy)
    assert "mixed-samples" in {each.name for each in report.findings}
