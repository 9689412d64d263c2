"""What the console of an attachment says on stderr, and in which process."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leadline.cli import attach as console_module
from leadline.cli.attach import Console, attach_with, summary_lines
from leadline.records.run import Alert
from leadline.report.look import Look
from leadline.runner.step_check import FoundStep
from tests.support.attachments import step
from tests.support.program_runs import own_lines, run_python

ALERT = Alert(code="M101", name="loss-spike", severity="error", message="it jumped", since=3, step=4)
CLEARED = Alert(
    code="M101", name="loss-spike", severity="error", message="it jumped", since=3, step=9, state="cleared"
)
QUICK = {"probes": False, "rehearse": False}


def make_console(*, quiet=False):
    return Console(Look(), "train.py", quiet=quiet)


def found_step():
    weight = torch.zeros(2, requires_grad=True)
    return FoundStep(number=1, optimizers=(torch.optim.SGD([weight], lr=0.1),))


@pytest.fixture
def attached():
    """Attach with a console to the loops of this process; detaches afterwards."""
    made = []

    def make(console, **options):
        made.append(attach_with(console, QUICK | options, {}))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize(("rank", "is_heard"), [("0", True), ("1", False)])
def test_of_the_processes_that_torchrun_starts_only_the_first_speaks(capsys, monkeypatch, rank, is_heard):
    monkeypatch.setenv("RANK", rank)
    make_console().say("a line")
    assert capsys.readouterr().err == ("leadline: a line\n" if is_heard else "")


def test_only_a_check_that_takes_long_is_announced_and_quiet_announces_none(capsys):
    for quiet, seconds in ((False, 0.1), (True, 40.0), (False, 40.0)):
        make_console(quiet=quiet).checking(found_step(), seconds)
    assert capsys.readouterr().err == "leadline: checking step 1 of train.py, for about 40 s\n"


def test_an_alert_is_said_with_its_severity_and_its_end_only_if_not_quiet(capsys):
    for quiet in (False, True):
        console = make_console(quiet=quiet)
        console.alerted(ALERT)
        console.alerted(CLEARED)
    raised = "leadline: error at step 4: M101 loss-spike: it jumped"
    assert capsys.readouterr().err.splitlines() == [
        raised,
        "leadline: step 9: M101 loss-spike is over",
        raised,
    ]


def test_the_status_line_comes_once_per_interval_with_the_last_loss(capsys, attached, monkeypatch):
    console = make_console()
    watched = attached(console)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        step(model(torch.randn(8, 4)).square().mean(), optimizer)
    capsys.readouterr()
    console.stepped(watched.watch)  # the first call starts the interval
    console.stepped(watched.watch)
    assert capsys.readouterr().err == ""
    now = console_module.time.monotonic()
    monkeypatch.setattr(console_module.time, "monotonic", lambda: now + 2 * console_module.STATUS_SECONDS)
    console.stepped(watched.watch)
    console.stepped(watched.watch)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("leadline: step 3 · loss ")
    assert " alerts · overhead " in line


def test_a_quiet_console_says_nothing_at_the_end(capsys, attached):
    quiet, loud = make_console(quiet=True), make_console()
    unused = attached(quiet)
    quiet.summarize(unused)
    assert capsys.readouterr().err == ""
    loud.summarize(unused)
    assert "no model was trained in this process" in capsys.readouterr().err


def test_the_summary_says_that_leadline_failed_and_the_program_went_on(attached):
    broken = attached(make_console())
    broken.failed(ZeroDivisionError("inside of Leadline"))
    assert summary_lines(broken, "train.py")[0] == (
        "internal error, after which the program ran on its own: ZeroDivisionError: inside of Leadline"
    )


def test_the_summary_says_that_steps_without_a_module_were_not_watched(attached):
    watched = attached(make_console())
    weight = torch.randn(6, 1, requires_grad=True)
    step((torch.randn(8, 6) @ weight).square().mean(), torch.optim.SGD([weight], lr=0.1))
    assert summary_lines(watched, "train.py") == [
        "no module is known that the optimizers train, so the steps were not watched"
    ]


def test_a_program_that_detaches_itself_gets_no_summary_at_its_end(tmp_path):
    source = "import leadline\nattached = leadline.attach()\n"
    (tmp_path / "left.py").write_text(source)
    (tmp_path / "closed.py").write_text(source + "attached.close()\n")
    assert "no model was trained" in own_lines(run_python(["left.py"], tmp_path).err)[0]
    assert run_python(["closed.py"], tmp_path).err == ""
