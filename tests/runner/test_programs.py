"""Programs of many shapes run under Leadline as they do without it, and their steps are found."""

from __future__ import annotations

import pytest

from tests.support.program_runs import own_lines, run_attached, run_plain

pytestmark = pytest.mark.long

FOUND = {
    "classifier": "step 1 of classifier.py: it calls model; Adam steps",
    "language_model": "step 1 of language_model.py: it calls model, 2 micro-batches; AdamW steps",
    "gan": "step 1 of gan.py: it calls netD 2 times; Adam steps",
    "vae": "step 1 of vae.py: it calls model; Adam steps",
    "dqn": "step 1 of dqn.py: it calls policy_net; AdamW steps",
    "reinforce": "step 1 of reinforce.py: it calls policy 10 times; Adam steps",
    "recurrent": "step 1 of recurrent.py: it calls model; SGD steps",
    "two_optimizers": "step 2 of two_optimizers.py: it calls model; Muon and AdamW step",
    "lbfgs": "step 1 of lbfgs.py: it calls model; LBFGS steps",
    "parts": "step 1 of parts.py: it calls image, text; AdamW steps",
    "scaled": "step 1 of scaled.py: it calls model; SGD steps",
    "hugging_face": "step 1 of hugging_face.py: it calls model, 2 micro-batches; AdamW steps",
    "lightning_module": "step 1 of lightning_module.py: it calls net; Adam steps",
    "accelerated": "step 1 of accelerated.py: it calls model, 2 micro-batches; AdamW steps",
    "compiled": "step 1 of compiled.py: it calls model; AdamW steps",
}
QUICK = ("classifier",)


@pytest.mark.parametrize(
    "program", [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in FOUND]
)
@pytest.mark.timeout(600)
def test_a_program_prints_and_computes_the_same_under_leadline_and_its_step_is_found(program, tmp_path):
    plain = run_plain(program, tmp_path)
    attached = run_attached(program, tmp_path)
    assert attached.out == plain.out, attached.err
    assert "weights" in plain.out
    assert attached.code == plain.code == 0
    assert FOUND[program] in own_lines(attached.err)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_program_in_half_precision_computes_the_same_under_leadline(tmp_path):
    plain = run_plain("language_model", tmp_path, "--bfloat16")
    assert run_attached("language_model", tmp_path, "--bfloat16").out == plain.out


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_program_with_data_workers_computes_the_same_under_leadline(tmp_path):
    plain = run_plain("classifier", tmp_path, "--workers", "2", "--epochs", "1")
    assert run_attached("classifier", tmp_path, "--workers", "2", "--epochs", "1").out == plain.out
