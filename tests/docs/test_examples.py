"""The examples do what they say; each runs here, on a smaller model where that makes no difference."""

import os
import re
import subprocess
import sys

import pytest

import leadline
from examples import failing_mlp, huggingface, transformer, watch
from tests.support import ROOT

EXAMPLES = ROOT / "examples"


def check(case: leadline.Case) -> leadline.Report:
    return leadline.check(case.model, case.inputs, case.targets, case.loss)


def test_the_deep_sigmoid_network_fails_by_gradient_decay():
    report = check(failing_mlp.factory())
    assert report.verdict == "fails"
    assert "B201" in [finding.code for finding in report.findings]


def test_the_shallow_sigmoid_network_trains():
    assert check(failing_mlp.shallow()).verdict == "trains"


@pytest.mark.parametrize(
    ("build", "placement"), [(transformer.pre_norm, "pre"), (transformer.post_norm, "post")]
)
def test_the_norms_are_found_where_the_flag_put_them(build, placement):
    blocks = check(build(layers=3, width=32)).profile.blocks
    assert [block.residual.placement for block in blocks if block.residual is not None] == [placement] * 6


def test_a_hugging_face_model_is_checked_with_its_own_loss():
    report = check(huggingface.factory(layers=2, width=32))
    assert report.verdict == "trains"
    assert sum(block.residual is not None for block in report.profile.blocks) == 4


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_every_example_says_how_to_run_it(path):
    assert re.search(rf"(python|torchrun \S+ \d+) examples/{path.name}", path.read_text())


@pytest.mark.parametrize(
    "name",
    [
        "failing_mlp",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("transformer", "huggingface", "run_file")),
    ],
)
def test_an_example_runs_as_a_script(name):
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    one_thread = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
    }  # two that wait for each other crawl on a busy machine
    run = subprocess.run(command, env=one_thread, capture_output=True, text=True, check=False, timeout=100)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()


def test_the_watched_run_tells_what_the_high_rate_did(tmp_path):
    w = watch.train(tmp_path / "run.leadline", steps=180)
    assert w.alerts
    assert min(alert.step for alert in w.alerts if alert.code.startswith("T8")) >= 120


@pytest.mark.slow
@pytest.mark.parametrize("how", [[], ["--shard"]], ids=["data parallel", "sharded"])
def test_the_distributed_run_is_watched_by_its_first_process(how, tmp_path):
    store = tmp_path / "run.leadline"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = [
        str(EXAMPLES / "distributed_watch.py"),
        *how,
        "--blocks",
        "8",
        "--steps",
        "6",
        "--store",
        str(store),
    ]
    run = subprocess.run(
        [*command, *script],
        env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-1000:]
    assert "6 steps, gradient norm" in run.stdout
    assert store.exists()
