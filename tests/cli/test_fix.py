"""`leadline fix`: exit codes, formats, files, and a diff that repairs the user's own file."""

from __future__ import annotations

import json
import subprocess
from textwrap import dedent

import pytest
import torch
from msgspec.structs import replace

import leadline
from leadline.cli.fix import diff_for_agents, diff_of, named_after
from leadline.records import Optimizer, Recipe, Source, SourceEdit
from leadline.records.repair import RepairReport
from leadline.report.formats import REPAIR_FORMATS
from leadline.report.look import Look
from tests.support import reports as samples
from tests.support.repairs import outcome, repair

pytestmark = pytest.mark.long

TARGET = """
import leadline
from torch import nn
import torch

def make():
    torch.manual_seed(0)
    stack = [part for _ in range(20) for part in (nn.Linear(24, 24), nn.ReLU())]
    model = nn.Sequential(*stack, nn.Linear(24, 4))
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    print("made")
    batch = torch.randn(32, 24), torch.randint(4, (32,))
    return leadline.Case(model, *batch, nn.functional.cross_entropy, adam)
"""


@pytest.fixture
def sick(run, tmp_path):
    (tmp_path / "sick.py").write_text(TARGET)
    return run


def test_a_network_that_fails_is_repaired_and_its_files_are_written_and_shown_again(sick, tmp_path):
    done = sick(
        *("fix", "sick.py:make", "--recipe", "recipe.json", "--save", "repaired.safetensors"),
        *("--format", "json", "--output", "repair.json", "--html", "page.html"),
    )
    assert done.code == 0
    assert "made" in done.err
    assert_saved_as_the_recipe_makes_it(tmp_path)
    assert_record_is_shown_again(sick, tmp_path)


def assert_saved_as_the_recipe_makes_it(folder):
    """The saved weights are those of the factory's model after the recipe."""
    from safetensors.torch import load_file

    made: dict = {}
    exec((folder / "sick.py").read_text(), made)
    case = made["make"]()
    leadline.apply(case.model, folder / "recipe.json", case.optimizer)
    saved = load_file(folder / "repaired.safetensors")
    assert saved.keys() == case.model.state_dict().keys()
    assert all(torch.equal(value, saved[name]) for name, value in case.model.state_dict().items())
    assert Recipe.from_json((folder / "recipe.json").read_text()).edits


def assert_record_is_shown_again(run, folder):
    """The saved record is read back as it was and shown in its formats, and in no other."""
    saved = (folder / "repair.json").read_text()
    record = RepairReport.from_json(saved)
    assert json.loads(saved)["schema"] == "leadline.repair/1"
    assert record.verdict_after == "trains"
    assert RepairReport.from_json(record.to_json()) == record
    again = run("report", "repair.json", "--format", "json", "--html", "again.html")
    assert again.out == saved
    assert (folder / "again.html").read_text() == (folder / "page.html").read_text()
    shown = run("report", "repair.json").out
    assert shown.startswith("REPAIRED: DOES NOT TRAIN → TRAINS, loss ")
    assert "verified" in shown
    assert "untreated" in shown
    refused = run("report", "repair.json", "--format", "sarif")
    assert refused.code == 2
    assert "choose one of text, agent, json, md, html" in refused.err


def test_the_diff_applies_and_the_changed_file_trains(sick, tmp_path):
    done = sick("fix", "sick.py:make", "--diff", "--output", "repair.diff")
    assert done.code == 0
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply", "repair.diff"], cwd=tmp_path, check=True)
    assert sick("check", "sick.py:make", "--fail-on", "error", "-q").out.startswith("TRAINS")


def test_without_a_change_to_make_the_diff_is_empty_and_stderr_says_why(run, tmp_path):
    (tmp_path / "fine.py").write_text(
        "import torch\nfrom torch import nn\n\ndef make():\n"
        "    model = nn.Linear(4, 2)\n"
        "    adam = torch.optim.Adam(model.parameters(), lr=0.1)\n"
        "    x = torch.randn(32, 4)\n"
        "    return model, x, (x[:, 0] > 0).long(), nn.functional.cross_entropy, adam\n"
    )
    done = run("fix", "fine.py:make", "--diff")
    assert done.code == 0
    assert done.out == ""
    assert "No diff, because there is no change to make: " in done.err
    assert "NOTHING TO FIX" in done.err


def test_a_healthy_network_needs_nothing(run):
    done = run("fix", "nets.py:healthy", "--format", "md")
    assert done.code == 0
    assert done.out.startswith("## NOTHING TO FIX")


def test_a_model_that_no_fix_repairs_gives_exit_code_1(run):
    done = run("fix", "nets.py:poisoned", "-q")
    assert done.code == 1
    assert done.out.startswith("NOT REPAIRED")


def test_undecided_is_exit_code_3(run):
    assert run("fix", "nets.py:weightless", "-q").code == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere.py:make",), "nowhere.py"),
        (("nets.py:healthy", "--budget", "soon"), "a time budget"),
        (("nets.py:healthy", "--save", "no/where.safetensors"), "there is no folder"),
        (("nets.py:faulty",), "ZeroDivisionError"),
    ],
)
def test_wrong_usage_is_exit_code_2(run, arguments, words):
    done = run("fix", *arguments)
    assert (done.code, done.out) == (2, "")
    assert words in done.err


CODE = "import torch\nimport math\nmodel.weight.data.mul_(2)\noptimizer.zero_grad()"
FACTORIES = {
    "names": ("    return net, x, None, None, adam", ["    model = net", "    optimizer = adam"]),
    "case": ("    return Case(model=net, inputs=x)", ["    model = net"]),
    "call": (
        "    return Case(build(), x)",
        ["    made = Case(build(), x)", "    model = made.model", "    return made"],
    ),
    "tuple": ("    return (build(), x)", ["    made = (build(), x)", "    model = made[0]"]),
    "starred": (
        "    return Case(net, *batch, None, adam)",
        [
            "    made = Case(net, *batch, None, adam)",
            "    model = made.model",
            "    optimizer = made.optimizer",
        ],
    ),
    "starred tuple": (
        "    return (net, *batch, None, adam)",
        ["    model = made[0]", "    optimizer = made[4]"],
    ),
    "keywords": (
        "    return Case(net, **batch)",
        ["    model = made.model", "    optimizer = made.optimizer"],
    ),
    "dict": ('    return {"model": build(), "inputs": x}', ['    model = made["model"]']),
}


def with_code(code: str) -> RepairReport:
    return repair(outcomes=(outcome(kept=True),), code=code)


def test_changed_lines_and_added_code_are_one_diff_that_git_applies_without_a_final_newline(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text("RATE = 0.1\n\ndef make():\n    return (net, *batch, None, adam)")
    change = SourceEdit(
        source=Source(file="nets.py", line=1), old="RATE = 0.1\n", new="RATE = 0.01\n", says="Set it"
    )
    report = repair(outcomes=(outcome(kept=True, source=(change,), other_code="model.eval()"),))
    (tmp_path / "repair.diff").write_text(diff_of("nets.py:make", report))
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply", "repair.diff"], cwd=tmp_path, check=True)
    expected = (
        "RATE = 0.01\n\ndef make():\n    made = (net, *batch, None, adam)\n"
        "    model = made[0]\n    model.eval()\n    return made\n"
    )
    assert (tmp_path / "nets.py").read_text() == expected


@pytest.mark.parametrize("kind", FACTORIES)
def test_the_diff_puts_the_code_before_the_return_and_imports_to_imports(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    ending, expected = FACTORIES[kind]
    (tmp_path / "nets.py").write_text(f'"""Nets."""\nimport torch\n\ndef make():\n    x = 1\n{ending}\n')
    added = [line[1:] for line in diff_of("nets.py:make", with_code(CODE)).splitlines() if line[0] == "+"][1:]
    assert added[0] == "import math"
    assert "    model.weight.data.mul_(2)" in added
    assert set(expected) <= set(added)


@pytest.mark.parametrize(
    "text",
    [
        "def make():\n    if x:\n        return 1\n    return 2\n",
        "def make():\n    return build()\n",
        "def make(:\n",
        "make = build\n",
        "def make():\n    yield 1\n",
    ],
)
def test_where_the_factory_is_not_that_simple_the_code_alone_is_printed(tmp_path, monkeypatch, capsys, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(dedent(text))
    assert diff_of("nets.py:make", with_code(CODE)) == CODE + "\n"
    assert "no diff: the factory is not a function with a single, final return" in capsys.readouterr().err


def of_program(code: str = CODE, model: str = "Net") -> RepairReport:
    """A repair of a program whose optimizer is Adam."""
    before = samples.sick()
    optimizer = Optimizer(name="Adam", groups=(), steps=0)
    profile = replace(before.profile, optimizer=optimizer, model=model)
    return repair(outcomes=(outcome(kept=True),), code=code, before=replace(before, profile=profile))


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (
            "import torch\nmodel = Net()\noptimizer = torch.optim.Adam(model.parameters(), lr=1)\ntrain()\n",
            "import torch\nimport math\nmodel = Net()\noptimizer = torch.optim.Adam(model.parameters(), lr=1)\n"
            "model.weight.data.mul_(2)\ntrain()\n",
        ),
        (
            "import torch, math\nmodel = Net(); optimizer = torch.optim.Adam(model.parameters(), lr=1)\ntrain()\n",
            "import torch, math\nmodel = Net(); optimizer = torch.optim.Adam(model.parameters(), lr=1)\n"
            "model.weight.data.mul_(2)\ntrain()\n",
        ),
        (
            "import torch\ndef main():\n    net = Net()\n    opt = Adam(\n        net.parameters())\n    train()\n",
            "import torch\nimport math\ndef main():\n    net = Net()\n    opt = Adam(\n        net.parameters())\n"
            "    model = net\n    model.weight.data.mul_(2)\n    train()\n",
        ),
    ],
)
def test_code_for_a_program_follows_the_statement_that_makes_its_optimizer(
    tmp_path, monkeypatch, program, expected
):
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "train.py").write_text(program)
    code = "import math\nmodel.weight.data.mul_(2)"
    subprocess.run(
        ["git", "apply"], cwd=tmp_path, input=diff_of("train.py", of_program(code)), text=True, check=True
    )
    assert (tmp_path / "train.py").read_text() == expected


@pytest.mark.parametrize(
    ("program", "model"),
    [
        ("a = Adam(m.parameters())\nb = Adam(n.parameters())\n", "Net"),
        ("optimizer = Adam([p for p in m.parameters()])\n", "Net"),
        ("optimizer = SGD(m.parameters())\n", "Net"),
        ("model = 1\nopt = Adam(m.parameters())\n", "Net"),
        ("optimizer = Adam(model.parameters())\n", "ReplayedModel"),
        ("optimizer = Adam(\n", "Net"),
    ],
)
def test_where_a_program_has_no_single_such_statement_the_code_alone_is_printed(
    tmp_path, monkeypatch, capsys, program, model
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(program)
    assert diff_of("train.py", of_program(model=model)) == CODE + "\n"
    assert "no diff: no single statement of the program makes an optimizer" in capsys.readouterr().err


def test_a_repair_for_an_agent_names_its_target_and_ends_with_the_diff(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("model = Net()\noptimizer = Adam(model.parameters())\n")
    record = named_after("train.py", of_program())
    text = REPAIR_FORMATS["agent"](record, Look()) + diff_for_agents("train.py", record)
    keys = [line.partition(": ")[0] for line in text.partition("\ndiff:\n")[0].splitlines()]
    assert keys[:3] == ["target", "result", "verdict"]
    assert {"change", "recheck", "apply"} <= {*keys}
    assert "\ndiff:\n--- a/train.py\n+++ b/train.py\n" in text
