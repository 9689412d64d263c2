"""`leadline run`, `check` and `fix` on training programs: verdicts, exit codes, stops, kills and run files."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

from leadline.monitor.runfile import Run
from tests.support import ROOT
from tests.support.program_runs import allow_interrupts, own_lines, process_environment, run_python

pytestmark = pytest.mark.long

TRAINS = """
import os, sys, time
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
centers = torch.randn(4, 16)
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 8
for step in range(steps):
    labels = torch.randint(4, (32,))
    loss = nn.functional.cross_entropy(model(centers[labels] + 0.5 * torch.randn(32, 16)), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, flush=True)
    time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 0)
print("end")
"""
FAILS = TRAINS.replace(
    "nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)",
    "nn.Linear(16, 32), *[m for _ in range(30) for m in (nn.Linear(32, 32), nn.Sigmoid())], nn.Linear(32, 4)",
)


TWO_NETWORKS = """
import torch
from torch import nn

torch.manual_seed(0)
networks = [nn.Sequential(nn.Linear(4, n), nn.ReLU(), nn.Linear(n, 1)) for n in (16, 24)]
optimizers = [torch.optim.Adam(each.parameters(), lr=1e-2) for each in networks]
for step in range(12):
    x = torch.randn(32, 4)
    for network, optimizer in zip(networks, optimizers):
        loss = nn.functional.mse_loss(network(x), x[:, :1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.fixture
def leadline(tmp_path):
    (tmp_path / "trains.py").write_text(TRAINS)
    (tmp_path / "fails.py").write_text(FAILS)

    def run(*arguments):
        return run_python(["-m", "leadline", *arguments], tmp_path)

    return run


def test_the_verdict_goes_to_stderr_and_the_summary_names_the_run_file(leadline, tmp_path):
    result = leadline("run", "--report", "report.json", "--store", "run.leadline", "trains.py")
    assert result.out.splitlines() == [*(f"step {n}" for n in range(8)), "end"]
    assert "TRAINS" in result.err
    assert own_lines(result.err)[-1] == "open the run: leadline view run.leadline"
    assert json.loads((tmp_path / "report.json").read_text())["verdict"] == "trains"
    with Run(tmp_path / "run.leadline") as run:
        assert run.scalars("loss")[0] == list(range(8))  # the checked step is the first


@pytest.mark.parametrize("options", [(), ("--no-rehearsal",)])
def test_the_report_file_has_a_report_for_each_network(leadline, tmp_path, options):
    (tmp_path / "two.py").write_text(TWO_NETWORKS)
    leadline("run", *options, "--report", "report.json", "two.py")
    reports = json.loads((tmp_path / "report.json").read_text())
    assert [each["verdict"] for each in reports] == ["trains", "trains"]


def test_check_only_stops_the_program_and_has_the_exit_codes_of_check(leadline):
    command = ("run", "--check-only", "--no-rehearsal")
    trains, fails = leadline(*command, "trains.py"), leadline(*command, "fails.py")
    assert (trains.code, fails.code) == (0, 1)
    assert trains.out == fails.out == ""  # without trial steps one batch is enough
    assert "B201" in fails.err
    assert "nothing was checked" not in trains.err  # the step that was checked is stopped before it is made


def test_the_check_waits_for_as_many_batches_as_asked(leadline):
    result = leadline("run", "--check-only", "trains.py")
    assert result.out.splitlines() == [f"step {n}" for n in range(7)]  # the eighth step is not made
    assert leadline("run", "--check-only", "--batches", "1", "trains.py").out == ""


def test_strict_stops_the_program_at_an_error_finding(leadline):
    result = leadline("run", "--strict", "--no-rehearsal", "fails.py")
    assert result.code == 1
    assert result.out == ""
    assert leadline("run", "--strict", "--no-rehearsal", "trains.py").out.endswith("end\n")


def test_check_of_a_program_is_a_check_of_its_first_step(leadline):
    result = leadline("check", "fails.py", "--no-rehearsal", "--format", "json", "--", "3")
    report = json.loads(result.out)
    assert result.code == 1
    assert report["target"] == "fails.py"
    assert "B201" in [finding["code"] for finding in report["findings"]]
    assert leadline("check", "trains.py", "-q").code == 0


def test_a_program_that_fails_after_its_first_step_is_checked_all_the_same(leadline, tmp_path):
    (tmp_path / "raises.py").write_text(
        TRAINS.replace("    time.sleep", "    1 / (2 - step)\n    time.sleep")
    )
    result = leadline("check", "raises.py", "--format", "json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["verdict"] == "trains"


@pytest.mark.slow
def test_fix_of_a_program_repairs_what_its_first_step_trains(leadline):
    result = leadline("fix", "fails.py", "--budget", "60s")
    assert result.code == 0, result.err
    assert result.out.startswith("REPAIRED")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("print(1)", "did not import torch"),
        ("import torch; torch.nn.Linear(2, 2)(torch.ones(3, 2))", "called a model, but not backward"),
        (
            "import torch; torch.nn.Linear(2, 2)(torch.ones(3, 2)).sum().backward()",
            "no torch.optim.Optimizer stepped",
        ),
        ("import torch", "no model was trained"),
        ("import sys; sys.exit(5)", "code 5"),
    ],
)
def test_a_program_without_a_step_is_explained(leadline, tmp_path, source, words):
    (tmp_path / "program.py").write_text(source)
    result = leadline("check", "program.py")
    assert result.code == 2
    assert words in " ".join(result.err.split())


def test_an_error_before_the_first_step_is_shown_with_the_line_of_the_program(leadline, tmp_path):
    (tmp_path / "program.py").write_text("import torch\nraise KeyError('data')")
    result = leadline("check", "program.py")
    assert result.code == 2
    assert "program.py:2" in result.err
    assert "KeyError: 'data'" in result.err


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_program_that_is_stopped_while_training_leaves_a_readable_run_file(leadline, tmp_path, number):
    command = [
        sys.executable,
        "-m",
        "leadline",
        "run",
        "--no-rehearsal",
        "--store",
        "run.leadline",
        "trains.py",
        "10000",
        "0.02",
    ]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=process_environment(),
        preexec_fn=allow_interrupts,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while "step 40" not in process.stdout.readline():
            pass
        time.sleep(1.0)
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
    assert process.returncode == -number
    if number is signal.SIGINT:
        assert error.count("KeyboardInterrupt") == 1
        assert "leadline/" not in error
    with Run(tmp_path / "run.leadline") as run:
        assert len(run.scalars("loss")[0]) >= 20


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        pytest.param("sys.exit(3)", 3, marks=pytest.mark.slow, id="exit"),
        pytest.param("os._exit(4)", 4, id="exit at once"),
        pytest.param("1 / 0", 1, id="error"),
        pytest.param("(os.fork() or os._exit(0))", 0, id="fork"),
    ],
)
def test_a_program_that_ends_or_forks_in_a_step_behaves_as_alone_and_its_run_file_is_readable(
    leadline, tmp_path, ending, code
):
    pause = "    time.sleep(float(sys.argv[2])"
    (tmp_path / "program.py").write_text(TRAINS.replace(pause, f"    step == 30 and {ending}\n{pause}"))
    arguments = ["program.py", "40", "0.02"]
    plain = run_python(arguments, tmp_path)
    attached = leadline("run", "--no-rehearsal", "--store", "run.leadline", *arguments)
    assert (attached.code, attached.out) == (plain.code, plain.out)
    assert attached.code == code
    with Run(tmp_path / "run.leadline") as run:
        assert len(run.scalars("loss")[0]) >= 15


def test_an_error_of_the_program_in_a_pass_shows_no_frame_of_leadline(leadline, tmp_path):
    (tmp_path / "program.py").write_text(
        TRAINS.replace("loss.backward()", "loss.backward() if step < 5 else 1 / 0")
    )
    result = leadline("run", "--no-rehearsal", "program.py")
    assert result.code == 1
    assert "ZeroDivisionError" in result.err
    assert str(ROOT) not in result.err


def test_attach_prints_the_verdict_of_the_loop_that_follows(tmp_path):
    (tmp_path / "program.py").write_text("import leadline\nleadline.attach()\n" + TRAINS)
    result = run_python(["program.py"], tmp_path)
    assert result.out.endswith("end\n")
    assert "TRAINS" in result.err
    assert "8 steps watched" in result.err
