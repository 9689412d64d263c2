"""The law of no false alarms: on a network in good order no rule says more than a note."""

from __future__ import annotations

import pytest
import torch

import leadline
from leadline.case import Case
from leadline.records.report import Report
from tests.support.healthy import deep, plain

pytestmark = pytest.mark.long

ZOO = {**plain.HEALTHY, **deep.HEALTHY}

DEEP = (
    "language model residual-linear 32",
    "language model pre 16",
    "mlp residual-sqrt 48",
    "mlp rezero 32",
    "mlp fixup 24",
    "mlp relu he 12",
    "layer norm relu 10",
    "torch encoder pre 6",
    "resnet skipinit 9",
    "resnet fixup 9",
    *(
        f"hugging face {name}"
        for name in (
            "gpt2 12 layers",
            "mamba",
            "t5",
            "bert",
            "roberta",
            "albert",
            "whisper",
            "llama",
            "qwen2",
            "mistral",
            "vit",
            "convnext",
        )
    ),
    *(
        f"language model {name}"
        for name in (
            "keel",
            "deepnorm",
            "residual-linear",
            "layerscale",
            "sandwich",
            "skipinit",
            "magneto",
            "res-post",
            "b2t",
            "mix",
            "t-fixup",
            "rezero",
            "peri",
            "gpt2-init",
            "layernorm-scaling",
            "deepnorm-adam",
            "residual-sqrt",
        )
    ),
)
"""These take longest; the like of each is among the rest."""


def checked(case: Case) -> Report:
    return leadline.check(case.model, case.inputs, case.targets, case.loss, case.optimizer)


@pytest.mark.filterwarnings("ignore")  # those of other people's models
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in DEEP else name for name in ZOO]
)
def test_a_healthy_network_gets_no_warning(name: str):
    torch.manual_seed(0)
    report = checked(ZOO[name]())
    loud = [f"{f.code} {f.severity} {f.where}: {f.message}" for f in report.findings if f.severity != "info"]
    assert loud == []
    assert report.verdict == "trains"


def test_there_are_at_least_forty_healthy_networks():
    assert len(ZOO) >= 40


def test_a_sick_network_gets_an_error():
    torch.manual_seed(0)
    sick = plain.case(plain.mlp(40, 64, torch.nn.ReLU), plain.vectors())
    assert any(finding.severity == "error" for finding in checked(sick).findings)
