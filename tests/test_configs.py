"""Reports on Hugging Face configs agree with themselves and with what theory needs."""

from __future__ import annotations

from typing import Any

import pytest

import leadline
from leadline.errors import InputError

pytestmark = pytest.mark.long

pytest.importorskip("transformers")

SMALL = {
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "intermediate_size": 1024,
    "vocab_size": 1000,
}
TYPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": {"n_embd": 512, "n_layer": 4, "n_head": 8},
    "bert": {},
    "mixtral": {"num_local_experts": 4},
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    **SMALL,
    "moe_intermediate_size": 128,
    "n_routed_experts": 16,
    "kv_lora_rank": 64,
    "q_lora_rank": 96,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 4,
    "first_k_dense_replace": 1,
}


def codes(report: Any) -> set[str]:
    return {finding.code for finding in report.findings}


def test_deepseek_v3_is_predicted_in_every_block() -> None:
    report = leadline.predict(DEEPSEEK, tokens=16)
    assert report.verdict == "trains"
    assert report.profile.theory is not None
    assert report.profile.theory.without == {}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("std", [0.5, 1e-5])
def test_weights_far_from_what_theory_needs_are_an_initialization_finding(kind: str, std: float) -> None:
    config = {"model_type": kind, **SMALL, **TYPES[kind]}
    usual = leadline.predict({**config, "initializer_range": 0.02}, tokens=16)
    assert codes(usual) & {"I308", "I310"} == set()
    assert usual.verdict == "trains"
    report = leadline.predict({**config, "initializer_range": std}, tokens=16)
    assert "I310" in codes(report)
    assert std < 0.02 or report.verdict in ("poor", "fails")


def test_a_report_without_weights_does_not_count_measured_values() -> None:
    page = str(leadline.predict({"model_type": "llama", **SMALL}, tokens=16))
    assert "values measured" not in page
    assert "nothing was measured" in page


def test_an_unknown_type_is_only_corrected_to_a_name_that_is_close() -> None:
    for typo, meant in (("lama", "llama"), ("gtp2", "gpt2"), ("brt", "bert"), ("mistrall", "mistral")):
        with pytest.raises(InputError, match=f"did you mean '{meant}'"):
            leadline.predict({"model_type": typo})
    for unknown in ("my_secret_model", "", None):
        with pytest.raises(InputError) as caught:
            leadline.predict({"model_type": unknown})
        assert "did you mean" not in str(caught.value)
    assert "CONFIG_MAPPING" in str(caught.value)
    assert "knows 0 types" not in str(caught.value)
