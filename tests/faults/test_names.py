"""No name of a module, model or file is obeyed: not on the terminal, in a page, a table, or in generated code."""

from __future__ import annotations

import ast
import csv
import io
import json
import logging

import pytest
import torch
from torch import nn

import leadline
from leadline.errors import InputError
from leadline.fixes._engine.edits import EditSession, all_actions, apply_edits, code_of
from leadline.monitor.arguments import handle_alert
from leadline.records import Edit
from leadline.records.run import Alert, Event
from leadline.report.formats import FORMATS
from tests.support.command_line import run
from tests.support.faults.hostile import NAMES, TARGET, Elements, orders
from tests.support.live_server import begin, serve

__all__ = ["run", "serve"]

HERE = "hostile.py:make_case"


@pytest.fixture
def write(run, tmp_path):
    (tmp_path / "hostile.py").write_text(TARGET)
    return run


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> str:
    """A report of a model all of whose names are hostile."""
    place = tmp_path_factory.mktemp("saved")
    (place / "hostile.py").write_text(TARGET)
    from leadline.cli.check import check_target

    return check_target(f"{place}/hostile.py:make_case", seed=0, rehearse=False).to_json()


def assert_only_own_scripts(page: str) -> None:
    found = Elements(page)
    assert not any(
        "alert(1)" in script for script in found.scripts if not script.lstrip().startswith(("[", "{"))
    )
    assert found.handlers == []
    assert "<script>alert" not in page


@pytest.mark.parametrize("form", FORMATS)
def test_a_check_of_hostile_names_prints_them_spelled_out(write, tmp_path, saved, form):
    (tmp_path / "saved.json").write_text(saved)
    done = write("report", "saved.json", "-v", "--format", form)
    assert done.code == 0
    assert orders(done.out + done.err) == []
    assert form in ("jsonl", "github") or "evil" in done.out  # the names are there
    if form == "html":
        assert_only_own_scripts(done.out)


def test_a_diff_of_hostile_names_is_python_in_which_they_are_strings(write, tmp_path):
    done = write("fix", HERE, "--budget", "1s", "--recipe", "recipe.json", "--html", "page.html", "--diff")
    assert done.code in (0, 1, 3)
    assert orders(done.out + done.err) == []
    assert_only_own_scripts((tmp_path / "page.html").read_text())
    assert orders((tmp_path / "recipe.json").read_text()) == []
    assert not (tmp_path / "pwned").exists()


OPTIONS = {
    "adam": {"lr": 0.001},
    "affine-output": {"factor": 2.0, "offset": 1.0},
    "clip": {"kind": "adaptive", "limit": 1.0},
    "decay": {"most": 0.1, "spared": NAMES},
    "dropout": {"attribute": "p", "rate": 0.1},
    "draw": {"kind": "normal", "size": 1.0, "packed": 1},
    "final-norm": {},
    "float32": {},
    "last-axis": {"kind": "squeeze"},
    "log-softmax": {"dim": 1},
    "options": {"momentum": 0.9, "eps": 1e-8, "beta1": 0.9, "beta2": 0.999},
    "norm": {"kind": "LayerNorm", "width": 4},
    "norm-first": {},
    "norm-heads": {"width": 4},
    "norm-input": {"kind": "LayerNorm", "width": 4},
    "qk-norm": {"width": 4},
    "rate": {"factor": 0.5},
    "recentre": {"dim": -1},
    "register": {"name": "layers", "kind": "ModuleList"},
    "reroute": {"calls": "relu", "to": "gelu"},
    "reset": {"seed": 0},
    "scale": {"factor": 0.5},
    "scale-call": {"calls": "matmul", "place": 0, "factor": 0.5},
    "scale-output": {"factor": 0.5, "learned": 1},
    "scheme": {"scheme": "deepnorm"},
    "shift": {"steps": 1, "axis": 1},
    "skip": {"factor": 0.5, "learned": 1},
    "standardize": {"mean": 0.0, "deviation": 1.0},
    "swap": {"to": "gelu"},
    "train": {"names": NAMES},
    "warm-up": {"steps": 3},
}


@pytest.mark.parametrize("action", all_actions())
def test_in_generated_code_a_name_is_a_string_and_nothing_else(action):
    """Two edits with each name, so that they become a loop; the calls are those of harmless names."""
    assert action in OPTIONS, f"give the new action {action!r} its options here"
    made = [_code(action, name) for name in (*NAMES, "a", "b.c")]
    for text in made:
        assert orders(text) == []
        assert _calls(text) == _calls(made[-1])


def _code(action: str, name: str) -> str:
    places = [f"{name}{copy}.inner.weight" for copy in range(2)]
    return code_of(Edit(action=action, where=place, options=OPTIONS[action]) for place in places)


def _calls(code: str) -> set[str]:
    """What the code calls; `getattr` stands for a dot where a name is no identifier, `range` for names in a row."""
    found = {ast.unparse(node.func) for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)}
    return {name.rpartition(".")[2] for name in found} - {"getattr", "range"}


def test_a_parameter_whose_name_is_no_identifier_is_still_drawn_by_the_generated_code():
    model = nn.Module()
    model.register_parameter("we'ir\n\"d", nn.Parameter(torch.zeros(2, 2)))
    code = code_of([Edit(action="draw", where="we'ir\n\"d", options=OPTIONS["draw"])])
    exec(compile(code, "<diff>", "exec"), {"model": model})
    assert model.get_parameter("we'ir\n\"d").abs().sum() > 0


HOSTILE_OPTIONS = [
    ("norm", {"kind": "Bilinear", "width": 4}),
    ("norm", {"kind": "LayerNorm(1); evil", "width": 4}),
    ("swap", {"to": "__class__"}),
    ("reroute", {"calls": 'relu", evil, "', "to": "gelu"}),
    ("reroute", {"calls": "relu", "to": "evil"}),
    ("draw", {"kind": "evil", "size": 1.0, "seed": 0, "packed": 1}),
    ("scheme", {"scheme": "evil"}),
]


@pytest.mark.parametrize(("action", "options"), HOSTILE_OPTIONS)
def test_a_recipe_cannot_name_what_leadline_does_not_know(action, options):
    model = nn.Sequential(nn.Linear(4, 4))
    edit = Edit(action=action, where="0.weight" if action == "draw" else "0", options=options)
    with pytest.raises(InputError):
        apply_edits(EditSession(model=model), [edit])


def test_the_errors_of_hostile_names_are_spelled_out(write):
    for name in ("\x1b[2Jx", "hostile.py:\x1b[2J", "hostile.py:crash"):
        done = write("check", name)
        assert done.code == 2
        assert orders(done.err) == []
    assert orders(write("report", "\x1b[2J").err) == []
    assert orders(write("check", HERE, "--format", "\x1b[2J").err) == []
    assert orders(write("check", HERE, "-o", "no/\x1b[2J").err) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_leadline_error_spells_out_the_names_in_it(name):
    model = nn.Sequential()
    model.add_module(name, nn.Linear(2, 2))
    with pytest.raises(InputError) as caught:
        leadline.apply(model, {"schema": "leadline.recipe/1", "leadline": "1", "model": name})
    assert orders(str(caught.value)) == []
    with pytest.raises(InputError) as caught:
        apply_edits(EditSession(model=model), [Edit(action="skip", where="no", options=OPTIONS["skip"])])
    assert orders(str(caught.value)) == []


def test_a_run_of_hostile_names_is_listed_exported_and_shown_without_obeying_them(write, tmp_path, serve):
    path = tmp_path / "a\x1b[2J\u202e.leadline"
    writer = begin(path, model="".join(NAMES))
    writer.axis("layers", NAMES)
    writer.put(10, {"=1+1": 1.0}, {"norm": ("layers", [1.0] * len(NAMES))})
    writer.event(Event(step=10, time=0.0, kind="warning", message=NAMES[0] + NAMES[3]))
    writer.close()
    for command in (["runs"], ["check", str(path)], ["export", str(path), "--to", "csv"]):
        done = write(*command)
        assert orders(done.out + done.err) == []
    table = list(csv.reader(io.StringIO(write("export", str(path), "--to", "csv", "--layers").out)))
    assert not any(cell.startswith(("=", "+", "@")) for row in table for cell in row)
    rows = write("export", str(path), "--to", "jsonl", "--layers").out.splitlines()
    assert {json.loads(row)["layer"] for row in rows} >= {*NAMES}
    serving = serve(path)
    page = serving.ask("/")[2]
    assert orders(page) == []
    assert_only_own_scripts(page)
    with serving.listen() as listener:
        text = json.dumps(listener.next(), ensure_ascii=False)
    assert orders(text) == []


def test_an_alert_is_logged_spelled_out(caplog):
    caplog.set_level(logging.INFO)
    handle_alert(
        Alert(code="T801", name=NAMES[1], severity="error", message=NAMES[0], since=1, step=2), "log"
    )
    assert orders(caplog.messages[0]) == []


def test_a_name_that_is_obeyed_would_be_seen():
    assert orders("a\x1b[2Jb\u202e\n") == ["\x1b", "\u202e"]
    assert Elements("<p onclick=x><script>alert(1)</script>").scripts == ["alert(1)"]
    with pytest.raises(AssertionError):
        assert_only_own_scripts("<script>alert(1)</script>")
