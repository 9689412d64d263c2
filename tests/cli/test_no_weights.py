"""`leadline check` without weights: a factory with --no-weights, or the config of a Hugging Face model."""

import json

import pytest

pytestmark = pytest.mark.long

GPT2 = {
    "model_type": "gpt2",
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 2,
    "vocab_size": 50,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def test_a_factory_is_predicted(run):
    found = run("check", "--no-weights", "nets.py:healthy", "--format", "json")
    report = json.loads(found.out)
    assert report["verdict"] == "trains"
    assert all(block["forward_ms"] is None for block in report["profile"]["blocks"])
    assert found.code == 0


def test_another_dtype_is_predicted(run):
    found = run("check", "--no-weights", "nets.py:healthy", "--dtype", "bfloat16", "-q")
    assert found.code == 0
    assert "predicted, not measured" in " ".join(found.out.split())


def test_a_config_is_predicted(run, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GPT2))
    found = run("check", str(path))
    assert "GPT2LMHeadModel" in found.out
    assert found.code == 0


BAD = {
    "misspelt": ('{"model_type": "gtp2"}', "gpt2"),
    "cut short": ('{"model', "truncated"),
    "a list": ("[]", "list"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_invalid_config_is_refused_with_exit_code_2(name, run, tmp_path):
    text, answer = BAD[name]
    path = tmp_path / "config.json"
    path.write_text(text)
    found = run("check", str(path))
    assert found.code == 2
    assert answer in found.err


@pytest.mark.parametrize("options", [["--device", "cpu"], ["--dtype", "bfloat16"]])
def test_options_about_weights_are_refused_for_a_config(options, run, tmp_path):
    found = run("check", str(tmp_path / "config.json"), *options)
    assert found.code == 2
    assert options[0] in found.err
