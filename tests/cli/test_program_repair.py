"""`leadline fix` of a program changes its own line, proves that by running the changed program, and leaves it alone
where the line may be meant so."""

from __future__ import annotations

import re
import subprocess

import pytest
from msgspec.structs import replace

from benchmarks.agent_policy.policy import keys_of
from leadline.cli.program_repair import object_to
from leadline.records import Rehearsal
from tests.support import reports as samples

pytestmark = pytest.mark.long

PROGRAM = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
criterion = nn.CrossEntropyLoss()
centers = 2 * torch.randn(3, 8)
for _ in range(30):
    labels = torch.randint(0, 3, (64,))
    inputs = centers[labels] + 0.3 * torch.randn(64, 8)
    loss = criterion(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
CLEAR = "    optimizer.zero_grad()\n"
HEAD_ONLY = ("Adam(model.parameters()", "Adam(model[4].parameters()")
TRAINED = """
with torch.no_grad():  # as after a training: some directions are large
    for layer in (model[0], model[2]):
        layer.weight += torch.outer(torch.randn(64), torch.randn(layer.in_features))
"""


@pytest.fixture
def diff(run, tmp_path):
    """The diff of a program that is written to train.py, and the program after it is applied."""
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)

    def diff(text: str, *options: str) -> tuple[str, str]:
        path = tmp_path / "train.py"
        path.write_text(text)
        done = run("fix", "train.py", "--diff", "--budget", "5s", *options)
        assert path.read_text() == text
        if done.out.startswith("--- "):
            subprocess.run(["git", "apply"], cwd=tmp_path, input=done.out, text=True, check=True)
        return done.out, path.read_text()

    return diff


def test_a_minus_sign_before_the_loss_is_deleted(diff):
    _, after = diff(PROGRAM.replace("loss = crit", "loss = -crit"))
    assert after == PROGRAM


def test_a_missing_zero_grad_is_found_in_the_loop_and_added_after_the_step(diff, run):
    text = PROGRAM.replace(CLEAR, "")
    _, after = diff(text, "--steps", "16")
    assert after == text + CLEAR
    said = run("check", "train.py", "--steps", "16", "--format", "agent").out
    assert "cause" not in said
    assert "your loop" not in said


def test_the_loop_of_a_program_that_clears_its_gradients_is_not_blamed(diff):
    assert diff(PROGRAM, "--steps", "16") == ("", PROGRAM)


def test_where_two_lines_step_there_is_advice_with_file_and_line_and_no_diff(diff, run):
    text = PROGRAM.replace(CLEAR, "").replace(
        "    optimizer.step()\n",
        "    if _ % 2:\n        optimizer.step()\n    else:\n        optimizer.step()\n",
    )
    assert diff(text, "--steps", "16") == ("", text)
    said = run("fix", "train.py", "--steps", "16", "--format", "agent").out
    assert "result: NOT REPAIRED" in said
    assert re.search(r"^advice: Call `optimizer.zero_grad\(\)` .+ in train.py:\d+$", said, re.MULTILINE)
    assert "diff:" not in said


def test_an_optimizer_of_the_head_gets_the_body_that_was_never_trained(diff, run):
    _, after = diff(PROGRAM.replace(*HEAD_ONLY))
    assert after == PROGRAM


def test_an_optimizer_of_the_head_stays_as_it_is_if_the_body_was_trained_before(diff, run):
    text = PROGRAM.replace(*HEAD_ONLY).replace("criterion = ", TRAINED + "criterion = ")
    assert diff(text) == ("", text)
    assert "doubt: D914" in run("check", "train.py", "--format", "agent").out


def test_a_healthy_program_has_nothing_to_fix(diff, run):
    assert diff(PROGRAM) == ("", PROGRAM)
    said = run("check", "train.py", "--format", "agent").out
    assert "cause" not in said
    assert "doubt" not in said
    assert "next: leadline check train.py --steps 64 --format agent\n" in said


def test_steps_are_for_programs_only(run):
    assert "only they have a loop" in run("check", "nets.py:healthy", "--steps", "8").err
    assert "only they have a loop" in run("fix", "nets.py:healthy", "--steps", "8").err


MISTAKES = {
    "D909": ("loss = crit", "loss = -crit"),
    "T816": (CLEAR, ""),
    "I309": ("model(inputs)", "model(inputs).softmax(1)"),
    "D911": ("torch.randint(0, 3, (64,))", "torch.zeros(64, dtype=torch.long)"),
    "I304": ("criterion = ", "for each in model.parameters():\n    nn.init.zeros_(each)\ncriterion = "),
}
# Heuristic: words of English have about four characters per token, code and numbers about three.
CHARACTERS_PER_TOKEN = 3


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("code", MISTAKES)
def test_an_agent_reads_cause_place_change_and_commands_in_a_few_hundred_tokens(run, tmp_path, code):
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "train.py").write_text(PROGRAM.replace(*MISTAKES[code]))
    steps = ("--steps", "16") if code.startswith("T") else ()
    said = run("check", "train.py", "--format", "agent", *steps).out
    assert f"cause: {code} " in said
    assert {"verdict", "measured", "evidence", "file", "change", "fix", "recheck"} <= keys_of(said).keys()
    assert re.fullmatch(r"train\.py:\d+", keys_of(said)["file"])
    assert len(said) / CHARACTERS_PER_TOKEN < 600


# What the changed program must show.


def rehearsed(*findings, losses=(1.0, 0.5)):
    profile = samples.profile([1.0], [1.0], rehearsal=Rehearsal(losses=losses))
    return replace(samples.report(profile), findings=findings)


def test_a_change_is_refused_if_the_finding_stays_or_another_comes():
    found = samples.finding("D909", severity="error")
    before = rehearsed(found)
    assert object_to(found, before, rehearsed()) == ""
    assert "still found" in object_to(found, before, rehearsed(found))
    assert object_to(found, before, rehearsed(replace(found, severity="info"))) == ""
    new = samples.finding("U501", severity="warning")
    assert "U501" in object_to(found, before, rehearsed(new))
    assert object_to(found, before, rehearsed(replace(new, severity="info"))) == ""


def test_a_note_is_acted_on_only_if_the_trial_steps_end_lower():
    note = samples.finding("D914", severity="info")
    before = rehearsed(note)
    assert object_to(note, before, rehearsed(losses=(1.0, 0.1))) == ""
    assert object_to(note, before, rehearsed(losses=(1.0, 0.4, 0.9))) == ""
    assert "do not end lower" in object_to(note, before, rehearsed(losses=(1.0, 0.5)))
    assert "do not end lower" in object_to(note, before, rehearsed(losses=(1.0, 0.8, 0.1)))
    assert "without trial steps" in object_to(note, before, samples.report(samples.profile([1.0], [1.0])))
