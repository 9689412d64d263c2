"""Bugs and habits of ordinary programs: target networks, repeated blocks, frozen norms, sums, words, unread inputs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leadline
from tests.readings.wiring.test_signs import SAMPLES, WIDTH, mlp
from tests.support.wiring import Function


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    torch.manual_seed(0)


def regression() -> tuple[Tensor, Tensor]:
    x = torch.randn(SAMPLES, WIDTH)
    return x, x[:, :1].sin()


def severities(
    model: nn.Module, inputs: Any, targets: Any, loss: Any, optimizer: torch.optim.Optimizer | None = None
) -> dict[str, str]:
    """The severities of all findings, notes included, by name."""
    optimizer = optimizer or torch.optim.Adam(model.parameters())
    report = leadline.check(model, inputs, targets, loss, optimizer=optimizer, rehearse=False)
    return {each.name: each.severity for each in report.findings}


@pytest.mark.parametrize("is_detached", [True, False])
def test_a_network_in_the_loss_learns_unless_its_result_is_detached(is_detached: bool):
    model = mlp(WIDTH, 1)
    target_network = copy.deepcopy(model)

    def loss(output: Tensor, following: Tensor) -> Tensor:
        value = target_network(following)
        return F.mse_loss(output, value.detach() if is_detached else value)

    found = severities(model, torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES, WIDTH), loss)
    assert ("unregistered-parameters" in found) == (not is_detached)


@pytest.mark.parametrize("how", ["rebuilt", "kept"])
def test_a_tensor_that_is_built_anew_from_predictions_cuts_the_graph(how: str):
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh())
            self.first, self.second = nn.Linear(16, 1), nn.Linear(16, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            hidden = self.body(x)
            return self.first(hidden).squeeze(1), self.second(hidden).squeeze(1)

    def loss(output: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        first = torch.tensor(list(output[0]), requires_grad=True) if how == "rebuilt" else output[0]
        return F.mse_loss(first, targets) + F.mse_loss(output[1], -targets)

    x, y = regression()
    found = severities(TwoHeads(), x, y.squeeze(1), loss)
    assert ("blocked-path" in found) == (how == "rebuilt")


@pytest.mark.parametrize("is_shared", [True, False])
def test_entries_of_a_sequential_are_layers_of_their_own(is_shared: bool):
    first = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())
    model = nn.Sequential(
        nn.Sequential(first, first if is_shared else copy.deepcopy(first)), nn.Linear(WIDTH, 1)
    )
    found = severities(model, *regression(), F.mse_loss)
    assert found.get("repeated-module") == ("warning" if is_shared else None)


@pytest.mark.parametrize(("is_chained", "expected"), [(True, "info"), (False, None)])
def test_two_names_of_one_layer_are_a_note_if_it_reads_itself(is_chained: bool, expected: str | None):
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Linear(WIDTH, WIDTH)
            self.other = self.conv
            self.head = nn.Linear(WIDTH, 1)

        def forward(self, x: Tensor) -> Tensor:
            if is_chained:
                return self.head(self.other(self.conv(x).relu()).relu())
            return self.head(self.conv(x).relu() + self.other(-x).relu())

    found = severities(Named(), *regression(), F.mse_loss)
    assert found.get("repeated-module") == expected


@pytest.mark.parametrize("state", ["new", "pretrained", "training"])
def test_batch_norms_in_eval_mode_need_statistics(state: str):
    norm = nn.BatchNorm1d(16)
    model = nn.Sequential(nn.Linear(WIDTH, 16), norm, nn.ReLU(), nn.Linear(16, 1))
    if state == "pretrained":
        model(torch.randn(64, WIDTH))
    if state != "training":
        norm.eval()
    found = severities(model, *regression(), F.mse_loss)
    assert ("evaluation-mode" in found) == (state == "new")


@pytest.mark.parametrize(
    ("optimizer", "lr", "expected"), [("SGD", 1.0, "warning"), ("SGD", 1e-5, "info"), ("Adam", 1e-3, "info")]
)
def test_a_sum_is_to_blame_where_it_makes_the_steps_too_long(optimizer: str, lr: float, expected: str):
    model = mlp(WIDTH, 1)
    x, y = regression()
    step = getattr(torch.optim, optimizer)(model.parameters(), lr=lr)
    assert severities(model, x, y, nn.MSELoss(reduction="sum"), step)["summed-loss"] == expected


@pytest.mark.parametrize("is_read", [True, False])
def test_a_model_that_reads_no_input_answers_the_same_to_all(is_read: bool):
    layers = mlp(WIDTH, 1)
    model = Function(lambda self, x: layers(x if is_read else torch.zeros(x.shape)), layers=layers)
    found = severities(model, *regression(), F.mse_loss)
    assert ("idle-input" in found) == (not is_read)


@pytest.mark.parametrize("is_batch_first", [True, False])
def test_as_many_words_as_samples_do_not_hide_that_samples_are_mixed(is_batch_first: bool):
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(30, 16)
            layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=is_batch_first)
            self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
            self.head = nn.Linear(16, 2)

        def forward(self, words: Tensor, mask: Tensor) -> Tensor:
            hidden = self.encoder(self.words(words), src_key_padding_mask=~mask)
            return self.head(hidden[:, 0])

    size = 10
    words, mask = torch.randint(1, 30, (size, size)), torch.ones(size, size, dtype=torch.bool)
    mask[::2, -2:] = False
    words[~mask] = 0
    found = severities(
        Reader(), {"words": words, "mask": mask}, torch.randint(0, 2, (size,)), F.cross_entropy
    )
    assert ("mixed-samples" in found) == (not is_batch_first)


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("is_paired", [True, False])
def test_scores_of_all_actions_meet_the_targets_of_other_samples(is_paired: bool):
    actions = torch.randint(0, 3, (SAMPLES,))

    def loss(values: Tensor, returns: Tensor) -> Tensor:
        chosen = values[torch.arange(SAMPLES), actions] if is_paired else values[:, actions]
        return F.smooth_l1_loss(chosen, returns)

    found = severities(mlp(WIDTH, 3), torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES), loss)
    assert ("mixed-targets" in found) == (not is_paired)
