"""Real architectures: their groups as they are known, confirmed by numbers; every specimen of the zoo; great depth."""

from __future__ import annotations

import math
import os

import pytest
import torch
import torch.nn.functional as F
from msgspec.structs import replace
from torch import nn

import leadline
from leadline.errors import InputError
from leadline.ops.table import OP_TABLE
from leadline.readings.symmetry.reading import read_symmetry
from leadline.readings.symmetry.scale_rules import SCALE_RULES
from leadline.readings.symmetry.verification import relative_change, verify
from leadline.records import Symmetry
from leadline.tracer.trace import trace
from tests.support.zoo import ZOO, Specimen, animals

GROUPS = {  # dimension and inert tensors at two layers; gpt2 and llama also by hand, the rest as read, then confirmed
    "hf-gpt2": (5, 0),  # two norms a layer against what reads them; the stream against the final norm (tied)
    "hf-bert": (12, 2),  # a key's bias is inert; post-norm has no joint freedom
    "hf-llama": (12, 9),  # embedding, values and all that writes to the stream
    "hf-vit": (12, 18),  # patches, positions, values, what writes to the stream, and biases of keys
    "hf-t5": (28, 0),
}


@pytest.mark.parametrize("name", GROUPS)
def test_the_group_of_a_known_architecture_is_found_and_confirmed(name: str):
    case = ZOO[name]()
    found = leadline.symmetries(case.model, case.inputs)
    verdict = found.verify()
    assert (found.dimension, len(found.inert)) == GROUPS[name]
    assert verdict.ok, str(verdict)
    assert verdict.missed == 0
    assert verdict.drift < 1e-12


RESNET = {  # in training: the dimension, and how many tensors are inert; as read, then counted by hand
    True: (
        13,
        18,
    ),  # 8 convolutions, 3 norms inside a block, the stream of either stage; the last one feeds the head
    False: (
        5,
        0,
    ),  # stored statistics are constants: norms inside a block and streams, against what reads them
}


@pytest.mark.parametrize("training", RESNET)
def test_the_group_of_a_hugging_face_resnet_depends_on_its_mode_and_is_confirmed(training: bool):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 8], depths=[1, 2], layer_type="basic", num_labels=3
    )
    model = transformers.ResNetForImageClassification(config).train(training)
    found = leadline.symmetries(model, {"pixel_values": torch.randn(4, 3, 32, 32)})
    verdict = found.verify()
    convolutions = {name for name, each in model.named_parameters() if each.dim() == 4}
    assert (found.dimension, len(found.inert)) == RESNET[training]
    assert set(found.invariant) >= convolutions if training else not found.invariant
    assert verdict.ok, str(verdict)
    assert verdict.missed == 0
    assert verdict.drift < 1e-12


@pytest.mark.parametrize("animal", animals(without=["deep"]))
def test_every_specimen_is_read_and_confirmed(animal: Specimen):
    case = animal()
    found = read_symmetry(trace(case.model, case.inputs, case.targets, case.loss))
    verdict = verify(found, case)
    assert verdict.ok, str(verdict)


def test_the_table_names_exactly_the_scale_rules_that_exist():
    assert {row.scale_rule for row in OP_TABLE} - {None} == SCALE_RULES.keys()


def test_an_op_without_a_rule_is_reported():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.second(torch.special.i0(self.first(x)))

    found = leadline.symmetries(Odd(), torch.randn(3, 4))
    assert found.record.held == ("torch.special.i0",) or any("i0" in each for each in found.record.held)
    assert found.dimension == 0


def norm(model: nn.Module) -> float:
    return sum(each.square().sum().item() for each in model.parameters())


@pytest.mark.parametrize("name", ["hf-llama", "hf-vit", "hf-gpt2", "conv-batch-norm", "encoder-post-norm"])
def test_a_balanced_copy_computes_the_same_with_less(name: str):
    case = ZOO[name]()
    made = leadline.balance(case.model, case.inputs)
    assert norm(made) < norm(case.model)
    assert norm(leadline.balance(made, case.inputs)) > 0.95 * norm(made)
    one, other = (_outputs(each, case.inputs) for each in (case.model, made))
    torch.testing.assert_close(one, other, rtol=2e-3, atol=1e-4)


def _outputs(model: nn.Module, inputs):
    from leadline.readings.symmetry.exact_model import output_tensors
    from leadline.tracer.inputs import call_model

    torch.manual_seed(0)
    return output_tensors(call_model(model, inputs))[-1].detach()


def test_weights_are_inert_if_the_gains_are_not_decayed():
    """The usual groups of a GPT: gains and biases are not decayed, and take up what the weights give away."""
    case = ZOO["hf-gpt2"]()
    named = list(case.model.named_parameters())
    groups = [
        {"params": [each for _, each in named if each.dim() > 1], "weight_decay": 0.1},
        {"params": [each for _, each in named if each.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    found = leadline.symmetries(case.model, case.inputs, optimizer=optimizer)
    assert set(found.inert) == {name for name, each in named if each.dim() > 1}
    assert found.free_share == pytest.approx(1.0)


@pytest.mark.slow
def test_a_thousand_layers_are_solved():
    torch.manual_seed(0)
    layers = [m for _ in range(1000) for m in (nn.Linear(8, 8), nn.ReLU())]
    found = leadline.symmetries(nn.Sequential(*layers, nn.Linear(8, 2)), torch.randn(4, 8))
    assert found.dimension == 1000
    assert all(len(each.exponents) == 3 for each in found.generators)
    assert found.inert == ()


def test_outputs_that_become_nan_have_changed_without_bound():
    finite, broken = torch.tensor([1.0, 2.0]), torch.tensor([1.0, math.nan])
    assert relative_change([finite], [broken]) == math.inf
    assert relative_change([broken], [broken]) == 0.0
    assert relative_change([], []) == 0.0


def test_symmetries_refuses_an_object_that_is_not_a_model():
    with pytest.raises(InputError):
        leadline.symmetries("no model", torch.randn(2, 2))


def test_a_penalty_that_was_not_measured_has_no_free_share():
    group = Symmetry(generators=(), tensors=(), decayed=False, penalty=2.0, least=1.0, eps=(), held=())
    assert group.free_share == 0.5
    assert replace(group, least=None).free_share is None


def test_without_a_loss_the_symmetries_are_those_of_the_output():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    seen = trace(model, torch.randn(8, 4), loss=lambda out: out.square().mean())
    assert read_symmetry(replace(seen, loss_value=None)).dimension >= read_symmetry(seen).dimension == 1


class Unlucky(nn.Module):
    """Draws a number in each pass from a generator of its own, which cannot be put back."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * (1 + os.urandom(1)[0])


def test_a_model_that_is_random_by_itself_is_not_measured_and_says_so():
    found = leadline.symmetries(Unlucky(), torch.randn(8, 4)).verify()
    assert found.passes == 0
    assert str(found) == ("not confirmed: the outputs differ between two passes with the same parameters")


@pytest.mark.parametrize("is_by_name", [True, False])
def test_an_eps_is_made_to_vanish_however_it_is_passed(is_by_name: bool):
    class Normalized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.first(x)
            size, eps = (6,), 1e-2
            h = F.layer_norm(h, size, eps=eps) if is_by_name else F.layer_norm(h, size, None, None, eps)
            return self.second(h)

    torch.manual_seed(0)
    found = leadline.symmetries(Normalized(), torch.randn(8, 4))
    verdict = found.verify()
    assert found.dimension == 1
    assert verdict.ok, str(verdict)
    assert verdict.drift < 1e-9 < 1e-4 < verdict.drift_with_eps
