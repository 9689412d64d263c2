"""A router and its experts: predicted without weights, and as measured with them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import leadline
from leadline import Case
from leadline.readings.theory.account import MAX_OWN_ERROR
from leadline.readings.theory.prediction import predict_moments
from leadline.tracer.trace import trace

WIDTH, EXPERTS, EACH = 64, 8, 2


class Routed(nn.Module):
    """Each token goes to the experts with the largest scores, weighted by these: a mixture of experts."""

    def __init__(self, spread: float) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.Parameter(torch.empty(EXPERTS, WIDTH, WIDTH).normal_(std=WIDTH**-0.5))
        nn.init.normal_(self.router.weight, std=spread * WIDTH**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        weights, places = self.router(x).softmax(-1).topk(EACH, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        rows = x.repeat_interleave(EACH, dim=0)
        made = torch.bmm(self.experts[places.reshape(-1)], rows.unsqueeze(-1)).squeeze(-1)
        return x + (made * weights.reshape(-1).unsqueeze(-1)).view(-1, EACH, WIDTH).sum(1)


def make(spread: float = 1.0, depth: int = 3) -> Case:
    model = nn.Sequential(*[Routed(spread) for _ in range(depth)], nn.LayerNorm(WIDTH))
    readout = torch.randn(512, WIDTH)
    return Case(model, torch.randn(512, WIDTH), readout, loss=lambda y, readout: (y * readout).sum())


@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0])
def test_the_output_of_routed_experts_is_predicted_forward_and_back(spread: float):
    torch.manual_seed(0)
    case = make(spread)
    seen = predict_moments(trace(case.model, case.inputs, case.targets, case.loss))
    adds = [op for op in seen.ops if op.name == "add"]
    assert len(adds) == 3
    for op in adds:
        value = seen.values[op.outputs[0]]
        assert math.log(op.forward_ms_predicted / value.forward.ms) == pytest.approx(
            0, abs=MAX_OWN_ERROR["forward"]
        )
        assert math.log(op.backward_ms_predicted / value.backward.ms) == pytest.approx(
            0, abs=MAX_OWN_ERROR["backward"]
        )


def test_a_mixture_of_experts_is_decided_without_weights():
    assert leadline.predict(make).verdict == "trains"
