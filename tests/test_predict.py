"""`leadline.predict` says without weights what `leadline.check` measures with them."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

import leadline
from leadline import Case, InputError
from leadline.lab.demo import deep_mlp
from leadline.tracer.trace import trace
from leadline.tracer.weightless import trace_config_or_factory
from leadline.tracer.weightless.configs import Sizes, build_model, make_case, model_class, read_config

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

WIDTH = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128}
CONFIGS = {
    "gpt2": {
        "n_embd": 64,
        "n_layer": 3,
        "n_head": 4,
        "vocab_size": 199,
        "bos_token_id": 0,
        "eos_token_id": 1,
    },
    "llama": {**WIDTH, "num_key_value_heads": 2, "vocab_size": 199},
    "bert": {**WIDTH, "vocab_size": 199},
    "vit": {**WIDTH, "image_size": 32, "patch_size": 8},
}
MIXTURES = {
    "mixtral": {**WIDTH, "num_key_value_heads": 2, "vocab_size": 199, "num_local_experts": 4},
    "qwen3_moe": {
        **WIDTH,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 199,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
}
FORWARD = math.log(
    1.35
)  # ours: of one draw at width 64 around the mean over draws; a wrong init factor is 2 and more


def plain(depth=20, width=128, scale=1.0):
    def make():
        layers = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)]
        with torch.no_grad():
            for layer in layers:
                nn.init.kaiming_normal_(layer[0].weight, nonlinearity="relu").mul_(scale)
        return Case(nn.Sequential(*layers), torch.randn(64, width), loss=lambda y: y.square().mean())

    return make


def measured(config):
    torch.manual_seed(0)
    case, _ = make_case(build_model(read_config(config)), Sizes(batch=4, tokens=32))
    return leadline.check(case.model, case.inputs, loss=case.loss)


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_profile_of_a_config_is_that_of_the_model_it_describes(kind):
    config = {"model_type": kind, **CONFIGS[kind]}
    found = leadline.predict(config, batch=4, tokens=32).profile
    real = measured(config).profile
    assert [block.name for block in found.blocks] == [block.name for block in real.blocks]
    assert found.parameters == real.parameters
    for ours, theirs in zip(found.blocks[:-1], real.blocks[:-1], strict=True):
        assert ours.forward_ms is None
        assert abs(math.log(ours.forward_ms_predicted / theirs.forward_ms)) < FORWARD, ours.name


@pytest.mark.parametrize("kind", [*CONFIGS, *MIXTURES])
def test_every_parameter_of_a_config_is_followed(kind):
    config = {"model_type": kind, **(CONFIGS | MIXTURES)[kind]}
    seen = {each.name: each for each in trace_config_or_factory(config, batch=2, tokens=64).parameters}
    torch.manual_seed(1)
    model = build_model(read_config(config))
    for name, weight in model.named_parameters():
        assert seen[name].ms is not None, name
        spread = weight.detach().square().std().item() / math.sqrt(weight.numel())
        assert abs(seen[name].ms - weight.square().mean().item()) < 5 * spread + 1e-9, seen[name]


@pytest.mark.parametrize("kind", MIXTURES)
def test_experts_run_batched_with_and_without_weights(kind):
    config = {"model_type": kind, **MIXTURES[kind]}
    seen = trace_config_or_factory(config, batch=2, tokens=64)
    case, _ = make_case(build_model(read_config(config)), Sizes())
    real = trace(case.model, case.inputs)
    assert sum(op.name == "bmm" for op in seen.ops) == 2 * WIDTH["num_hidden_layers"]
    assert of_experts(seen) == of_experts(real)


def of_experts(seen):
    """Ops of the mixtures and shapes of what they wrote; around them, transformers makes its masks in another way."""
    return [
        (op.module, op.name, [seen.values[each].shape for each in op.outputs])
        for op in seen.ops
        if ".mlp" in op.module
    ]


def test_the_residual_scaling_of_gpt2_is_seen():
    parameters = trace_config_or_factory(
        {"model_type": "gpt2", **CONFIGS["gpt2"]}, batch=2, tokens=64
    ).parameters
    by_name = {each.name: each for each in parameters}
    inner, last = by_name["transformer.h.0.mlp.c_fc.weight"], by_name["transformer.h.0.mlp.c_proj.weight"]
    assert inner.ms == pytest.approx(0.02**2)
    assert last.ms == pytest.approx(0.02**2 / 6)


def test_a_vanishing_gradient_is_predicted_and_marked_as_a_prediction():
    report = leadline.predict(plain(scale=0.5))
    assert report.verdict == "fails"
    finding = next(each for each in report.findings if each.code == "B201")
    assert finding.message.endswith("(predicted)")
    assert finding.evidence["gain_per_block"] == pytest.approx(0.25, rel=0.02)
    assert "predicted, not measured" in " ".join(str(report).split())


def test_a_healthy_stack_is_foreseen_to_train():
    report = leadline.predict(plain())
    assert (report.verdict, report.findings) == ("trains", ())


def test_moments_stay_apart_from_measurements():
    report = leadline.predict(plain(depth=6))
    assert all(block.forward_ms is None and block.backward_ms is None for block in report.profile.blocks)
    assert report.profile.predicted
    assert leadline.Report.from_json(report.to_json()) == report


def test_what_is_drawn_shows_the_prediction():
    lines = str(leadline.predict(plain(scale=0.5))).splitlines()
    row = next(line for line in lines if line.startswith("backward"))
    assert "·" not in row
    assert "×0.250" in row


def test_an_axis_that_theory_does_not_reach_is_undecided():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x):
            return self.outer(torch.special.bessel_j0(torch.linalg.pinv(self.inner(x))).t())

    report = leadline.predict(lambda: (Odd(), torch.randn(16, 16), None, lambda y: y.sum()))
    assert report.verdict == "undecided"


def test_an_input_that_cannot_be_followed_is_assumed_standardized_and_reported_as_a_gap():
    report = leadline.predict(deep_mlp)
    assert report.verdict == "fails"
    assert any("standard normal values are assumed" in gap.why for gap in report.coverage.gaps)


def test_a_built_model_is_refused():
    with pytest.raises(InputError, match="pass a function that builds the model"):
        leadline.predict(nn.Linear(3, 3))


BAD = {
    "a misspelt type": ({"model_type": "lama"}, "llama"),
    "no type": ({"hidden_size": 3}, "no model_type"),
    "a wrong field": ({"model_type": "llama", "hidden_size": "wide"}, "accepts"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_config_that_cannot_be_used_is_refused_with_a_message(name, tmp_path):
    config, text = BAD[name]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    with pytest.raises(InputError, match=text):
        leadline.predict(path)


def test_without_transformers_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("leadline.tracer.weightless.configs.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install '\.\[huggingface\]'"):
        leadline.predict({"model_type": "gpt2"})


def test_a_config_object_is_not_changed():
    config = transformers.LlamaConfig(**CONFIGS["llama"])
    before = config.to_dict()
    leadline.predict(config)
    assert config.to_dict() == before


def test_an_empty_batch_is_refused():
    with pytest.raises(leadline.InputError, match="batch of at least 1"):
        leadline.predict({"model_type": "gpt2"}, batch=0)


def test_the_advice_for_a_built_model_works():
    with pytest.raises(leadline.InputError, match="pass a function that builds the model"):
        leadline.predict(torch.nn.Linear(64, 1))
    report = leadline.predict(
        lambda: leadline.Case(torch.nn.Linear(64, 1), torch.randn(8, 64), loss=lambda y: y.square().mean())
    )
    assert report.profile.predicted


def test_the_class_of_a_config_is_the_one_it_names_else_that_of_its_type_else_there_is_none():
    transformers = pytest.importorskip("transformers")
    named = transformers.GPT2Config(architectures=["GPT2ForTokenClassification"])
    assert model_class(named) is transformers.GPT2ForTokenClassification
    assert model_class(transformers.GPT2Config()) is transformers.GPT2LMHeadModel
    with pytest.raises(InputError, match="no such model"):
        model_class(transformers.PretrainedConfig())
