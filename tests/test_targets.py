"""A target names a function or a value that gives a Case; the error for a bad target says what to write."""

import sys
from textwrap import dedent

import pytest
import torch
from torch import nn

from leadline.case import Case
from leadline.errors import InputError
from leadline.targets import load, move_case

GOOD = """
import torch
from torch import nn
from leadline import Case

def make():
    return Case(nn.Linear(2, 1), torch.ones(3, 2), loss=lambda out: out.sum())

def as_tuple():
    return nn.Linear(2, 1), torch.ones(3, 2)

def as_dict():
    return {"model": nn.Linear(2, 1), "inputs": torch.ones(3, 2)}

def _private(): ...

def with_arguments(depth, *, width, seed=0, **others): ...

class Zoo:
    class Bears:
        make = staticmethod(make)

ready = make()
model = nn.Linear(2, 1)
number = 3
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write files in an empty working directory."""
    monkeypatch.chdir(tmp_path)

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        return path

    return write


@pytest.mark.parametrize("name", ["make", "as_tuple", "as_dict", "Zoo.Bears.make", "ready"])
def test_a_target_is_a_function_or_a_value_that_gives_a_case(write, name):
    write("nets.py", GOOD)
    case = load(f"nets.py:{name}")
    assert isinstance(case, Case)
    assert isinstance(case.model, nn.Linear)


def test_a_file_can_be_given_by_its_full_path(write):
    path = write("deep/er/nets.py", GOOD)
    assert isinstance(load(f"{path}:make"), Case)


def test_a_module_is_imported_from_the_working_directory(write):
    write("farm_of_targets/__init__.py", "")
    write("farm_of_targets/nets.py", GOOD)
    assert isinstance(load("farm_of_targets.nets:make"), Case)


def test_a_file_can_import_the_files_next_to_it_and_sys_path_is_restored(write):
    write("lab/neighbor_of_target.py", "WIDTH = 7")
    write("lab/late_neighbor_of_target.py", "DEPTH = 2")
    write(
        "lab/nets.py",
        """
        import torch
        from neighbor_of_target import WIDTH

        def make():
            from late_neighbor_of_target import DEPTH
            return torch.nn.Linear(WIDTH, DEPTH), torch.ones(1, WIDTH)
        """,
    )
    before = list(sys.path)
    assert load("lab/nets.py:make").model.weight.shape == (2, 7)
    assert sys.path == before


def test_two_files_with_the_same_name_do_not_collide(write):
    for folder, width in (("one", 1), ("two", 2)):
        write(
            f"{folder}/nets.py",
            f"import torch\ndef make(): return torch.nn.Linear({width}, 1), torch.ones(1)",
        )
    assert [load(f"{folder}/nets.py:make").model.in_features for folder in ("one", "two")] == [1, 2]


def test_a_file_named_like_an_installed_module_is_loaded_as_a_file(write):
    write("json.py", GOOD)
    import json

    assert isinstance(load("./json.py:make"), Case)
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("nets.py", ["path/file.py:factory", "nets.py:make"]),
        ("nets.py:", ["nets.py:make"]),
        (":make", ["path/file.py:factory"]),
        ("", ["path/file.py:factory"]),
        ("nets", ["nets:factory"]),
        ("nest.py:make", ["'nest.py', which does not exist", "did you mean nets.py?"]),
        ("quite_different.py:make", ["nets.py"]),
        ("no/where/nets.py:make", ["check the path"]),
        ("surely_not_installed.nets:make", ["surely_not_installed", "install"]),
        ("json.surely_not_there:make", ["surely_not_there"]),
        ("nets.py:mak", ["'mak'", "did you mean make?"]),
        ("nets.py:Zoo.bears", ["did you mean Bears?"]),
        ("nets.py:xyz", ["make, as_tuple, as_dict, with_arguments, Zoo"]),
        ("nets.py:with_arguments", ["which needs depth, width"]),
        ("nets.py:number", ["got int", "leadline.Case"]),
        ("nets.py:model", ["torch.nn.modules.linear.Linear", "leadline.Case"]),
    ],
)
def test_the_error_for_a_bad_target_says_what_to_do(write, spec, words):
    write("nets.py", GOOD)
    with pytest.raises(InputError) as caught:
        load(spec)
    message = str(caught.value)
    assert [word for word in words if word not in message] == []


def test_imported_functions_are_not_suggested_as_factories(write):
    write("nets.py", "from torch.nn import Linear\ndef make(): ...")
    with pytest.raises(InputError, match=r"use one of: make$"):
        load("nets.py:xyz")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("raise KeyError('mine')", KeyError),
        ("def make(): raise ZeroDivisionError", ZeroDivisionError),
        ("def make(): raise TypeError('mine')", TypeError),
        ("import surely_not_installed", ModuleNotFoundError),
        ("def make(: ...", SyntaxError),
        ("raise KeyboardInterrupt", KeyboardInterrupt),
    ],
)
def test_errors_of_the_users_code_are_passed_on_unchanged(write, text, error):
    write("nets.py", text)
    before = list(sys.path)
    with pytest.raises(error):
        load("nets.py:make")
    assert sys.path == before


def test_a_file_that_fails_to_load_leaves_no_module_loaded(write):
    write("nets.py", "raise KeyError('mine')")
    before = set(sys.modules)
    with pytest.raises(KeyError):
        load("nets.py:make")
    assert [name for name in sys.modules.keys() - before if "leadline_target" in name] == []


def test_a_missing_dependency_is_not_reported_as_a_missing_target(write):
    write("module_with_a_lack.py", "import surely_not_installed")
    with pytest.raises(ModuleNotFoundError, match="surely_not_installed"):
        load("module_with_a_lack:make")


def test_a_script_that_exits_when_imported_is_an_error(write):
    write("script.py", "import sys\nsys.exit(0)")
    with pytest.raises(InputError, match="__main__"):
        load("script.py:make")


def test_only_floating_point_tensors_change_their_dtype():
    inputs = {"x": torch.ones(2), "ids": [torch.ones(2, dtype=torch.long), "word", None]}
    loss = nn.CrossEntropyLoss(weight=torch.ones(2))
    targets = (torch.tensor([True]),)
    case = Case(nn.Linear(2, 2), inputs, targets, loss, batches=[(inputs, targets)])
    there = move_case(case, device="meta", dtype="bfloat16")
    assert {there.model.weight.dtype, there.inputs["x"].dtype, there.loss.weight.dtype} == {torch.bfloat16}
    assert there.inputs["ids"][0].dtype == torch.long
    assert there.targets[0].dtype == torch.bool
    assert {there.inputs["ids"][0].device.type, there.targets[0].device.type} == {"meta"}
    assert there.inputs["ids"][1:] == ["word", None]
    for _ in range(2):
        ((batch, labels),) = there.batches
        assert (batch["x"].dtype, batch["ids"][0].dtype) == (torch.bfloat16, torch.long)
        assert (batch["ids"][1:], labels[0].dtype) == (["word", None], torch.bool)


def test_without_device_and_dtype_nothing_moves():
    case = Case(nn.Linear(2, 2), torch.ones(2))
    there = move_case(case, device=None, dtype=None)
    assert there.inputs is case.inputs
    assert there.model is case.model


def test_a_moved_model_keeps_the_parameters_that_its_optimizer_holds():
    model = nn.Linear(2, 2)
    weight = model.weight
    there = move_case(Case(model, torch.ones(2)), device=None, dtype="float64")
    assert there.model.weight is weight
    assert weight.dtype == torch.float64


@pytest.mark.parametrize(
    ("device", "dtype", "words"),
    [
        ("warp", None, "'warp'"),
        ("cuda:99", None, "leadline doctor"),
        (None, "int64", "bfloat16"),
        (None, "nn", "'nn'"),
    ],
)
def test_an_unknown_device_or_dtype_is_an_error(device, dtype, words):
    with pytest.raises(InputError, match=words):
        move_case(Case(nn.Linear(2, 2), torch.ones(2)), device=device, dtype=dtype)
