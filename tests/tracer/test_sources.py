"""Where a model is written: the user's own classes, in files as the repository names them."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import leadline
from leadline.records import Source
from leadline.report.place import place_of, stable_where
from leadline.tracer.sources import find_source, repository_root
from tests.support import reports as samples

CODE = """from torch import nn


def note(cls):
    return cls


@note
class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x):
        return self.body(x)


def make():
    return Mine()
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """`load("folder/name.py")`: a module of that file, below an empty repository in which we stand."""
    monkeypatch.chdir(tmp_path)

    def load(path: str) -> ModuleType:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(CODE)
        module = ModuleType(f"sources_{file.stem}")
        module.__file__ = str(file)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(CODE, str(file), "exec"), module.__dict__)
        return module

    return load


def test_a_class_and_a_function_are_found_at_their_lines(load, tmp_path):
    module = load("src/nets.py")
    assert find_source(module.Mine, tmp_path) in (
        Source(file="src/nets.py", line=8),  # the decorator, from Python 3.13 the class
        Source(file="src/nets.py", line=9),
    )
    assert find_source(module.make, tmp_path) == Source(file="src/nets.py", line=18)
    assert find_source(module, tmp_path) == Source(file="src/nets.py", line=1)


@pytest.mark.parametrize(
    "path", [".venv/lib/python3.11/site-packages/nets.py", "usr/lib/dist-packages/nets.py"]
)
def test_what_is_installed_is_not_the_users_also_inside_the_repository(load, tmp_path, path):
    assert find_source(load(path).Mine, tmp_path) is None


def test_what_is_outside_the_repository_or_in_no_file_has_no_place(load, tmp_path):
    module = load("nets.py")
    assert find_source(module.Mine, tmp_path / "elsewhere") is None
    assert find_source(nn.Linear, tmp_path) is None
    assert find_source(dict, tmp_path) is None
    Path(module.__file__).unlink()
    assert find_source(module.Mine, tmp_path) is None


def test_a_class_typed_into_a_prompt_has_no_place(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    typed = type("Typed", (nn.Linear,), {"__module__": "__main__"})
    assert find_source(typed, tmp_path) is None
    report = leadline.check(typed(4, 4), torch.randn(8, 4), loss=lambda y: y.square().mean())
    assert "" not in report.sources


def test_a_file_that_changed_since_costs_the_line_only(load, tmp_path):
    module = load("nets.py")
    Path(module.__file__).write_text("def broken(:\n")
    assert find_source(module.Mine, tmp_path) == Source(file="nets.py", line=1)


@pytest.mark.parametrize(("mark", "root"), [(None, "a/b"), ("a/.git", "a"), ("a/b/.git", "a/b")])
def test_names_start_at_the_repository_around_the_working_directory(tmp_path, monkeypatch, mark, root):
    (tmp_path / "a" / "b").mkdir(parents=True)
    if mark:
        (tmp_path / mark).mkdir()
    monkeypatch.chdir(tmp_path / "a" / "b")
    assert repository_root() == tmp_path / root


def test_a_report_knows_where_the_users_modules_are_written(load):
    report = leadline.check(load("nets.py").Mine(), torch.randn(8, 4), loss=lambda y: y.square().mean())
    assert report.sources.keys() == {"", "body.0", "body.1"}
    assert report.sources[""].file == "nets.py"


def test_a_layer_of_pytorch_is_placed_at_the_line_that_calls_it(load):
    report = leadline.check(load("nets.py").Mine(), torch.randn(8, 4), loss=lambda y: y.square().mean())
    assert report.sources["body.0"] == Source(file="nets.py", line=15)


def test_a_finding_about_one_line_is_placed_there():
    report = samples.report(samples.profile([1.0], [1.0]))
    line = Source(file="model.py", line=46)
    assert place_of(report, replace(samples.finding(), source=line)) == line


@pytest.mark.parametrize(
    ("where", "file"),
    [
        ("body.2 … body.0", "body.py"),
        ("body.2.fc1…fc2", "body.py"),
        ("body#2", "body.py"),
        ("body.2.weight", "body.py"),
        ("bodyguard", "model.py"),
        ("head", "model.py"),
        ("the model itself", "model.py"),
        ("the loss", "train.py"),
        ("", "model.py"),
    ],
)
def test_a_finding_is_placed_at_the_nearest_module_of_the_users_own(where, file):
    report = samples.report(samples.profile([1.0], [1.0]))
    sources = {
        "": Source(file="model.py", line=1),
        "body": Source(file="body.py", line=2),
        "the loss": Source(file="train.py", line=3),
    }
    found = place_of(replace(report, sources=sources), samples.finding(where=where))
    assert found.file == file


def test_the_ends_of_a_range_may_drift_and_a_single_layer_may_not():
    assert stable_where("layers.58 … layers.0") == stable_where("layers.57 … layers.1")
    assert stable_where("layers.58") != stable_where("layers.57")
    assert stable_where("encoder.5 … encoder.0") != stable_where("decoder.5 … decoder.0")


def test_an_op_knows_the_line_of_the_users_own_code_that_called_it(load):
    module = load("nets.py")
    trace = leadline.trace(module.Mine(), torch.randn(8, 4), loss=lambda y: y.square().mean())
    lines = {op.name: op.source for op in trace.ops if op.phase == "forward"}
    assert lines == dict.fromkeys(("linear", "tanh"), Source(file="nets.py", line=15))


def test_an_op_that_only_installed_code_calls_has_no_line(load):
    installed = load(".venv/lib/python3.11/site-packages/nets.py")
    trace = leadline.trace(installed.Mine(), torch.randn(8, 4), loss=lambda y: y.square().mean())
    assert {op.source for op in trace.ops if op.phase == "forward"} == {None}


def test_a_finding_about_the_optimizer_is_not_placed_at_the_model():
    report = samples.report(samples.profile([1.0], [1.0]))
    report = replace(report, sources={"": Source(file="model.py", line=1)})
    assert place_of(report, samples.finding(where="the optimizer")) is None


def test_the_loss_is_placed_at_the_line_that_computes_it(load):
    model = load("nets.py").Mine()
    module = load("losses.py")
    exec(compile("\n\ndef loss(y): return y.square().mean()\n", module.__file__, "exec"), module.__dict__)
    report = leadline.check(model, torch.randn(8, 4), loss=module.loss)
    assert report.sources["the loss"] == Source(file="losses.py", line=3)
