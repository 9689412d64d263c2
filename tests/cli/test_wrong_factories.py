"""Wrong factories: each ends with exit code 2, the user's own line, the original error and what to do."""

import os
import subprocess
import sys
from dataclasses import dataclass
from textwrap import dedent

import pytest
import torch
from torch import nn
from torch.nn import functional

import leadline

HEADER = """\
import torch
from torch import nn
from torch.nn import functional as F
import leadline

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(5, 3)
    def forward(self, x):
        return self.head(self.body(x))

class Fails(nn.Linear):
    def forward(self, x):
        raise KeyError("no such key")

class InPlace(nn.Module):
    def forward(self, x):
        return x.add_(1)

def sequential():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

x, y = torch.randn(6, 4), torch.randint(0, 3, (6,))

"""


@dataclass(frozen=True)
class WrongFactory:
    """A factory with a mistake, the line of it that must be shown, and the words of the error and of the advice."""

    body: str
    line: str
    words: tuple[str, ...]
    head: str = "def make():"


def returning(expression: str, *words: str) -> WrongFactory:
    return WrongFactory(f"return {expression}", f"return {expression}", words)


WRONG = {
    "a wrong width in a sequential": returning(
        "sequential(), torch.randn(6, 5), y, F.cross_entropy",
        *("RuntimeError", "takes 4 features and gets 5", "0 (Linear)", "float32 (6, 5)", "in_features=5"),
    ),
    "a wrong width in one's own module": WrongFactory(
        "return Net(), x, y, F.cross_entropy",
        "return self.head(self.body(x))",
        ("RuntimeError", "head (Linear)", "takes 5 features and gets 8"),
    ),
    "wrong channels": returning(
        "nn.Conv2d(3, 4, 3), torch.randn(2, 8, 8, 3), None, lambda o: o.square().mean()",
        *("RuntimeError", "takes 3 channels and gets 8"),
    ),
    "double inputs": returning(
        "sequential(), x.double(), y, F.cross_entropy",
        *("RuntimeError", "float64 (6, 4)", "inputs.to(torch.float32)", "model.to(torch.float64)"),
    ),
    "integer inputs": returning(
        "sequential(), torch.ones(6, 4, dtype=torch.long), y, F.cross_entropy",
        *("RuntimeError", "int64 (6, 4)", "pass inputs.to(torch.float32)"),
    ),
    "a label out of range": returning(
        "sequential(), x, y + 1, F.cross_entropy",
        *("IndexError", "labels run from", "to 3", "3 classes (0 to 2)"),
    ),
    "a negative label": returning(
        "sequential(), x, y - 1, nn.CrossEntropyLoss()",
        *("IndexError", "labels run from -1", "renumber the labels"),
    ),
    "floating labels": returning(
        "sequential(), x, y.float(), F.cross_entropy",
        *("RuntimeError", "targets.long()"),
    ),
    "a value that is changed in place": returning(
        "nn.Sequential(nn.Linear(4, 3), nn.Sigmoid(), InPlace()), x, None, torch.mean",
        *("RuntimeError", "backward pass failed", "changed in place"),
    ),
    "targets of another length": returning(
        "sequential(), x, y[:4], F.cross_entropy", "ValueError", "output float32 (6, 3)", "targets int64 (4,)"
    ),
    "targets of another shape": returning(
        "nn.Linear(4, 3), x, torch.randn(6, 2), F.l1_loss", "(6, 3)", "(6, 2)", "reshape"
    ),
    "a loss given as a class": returning(
        "sequential(), x, y, nn.CrossEntropyLoss",
        *("the class torch.nn.modules.loss.CrossEntropyLoss", "pass an instance"),
    ),
    "a loss given as a value": returning(
        "sequential(), x, y, F.cross_entropy(sequential()(x), y)", "expected loss as a function", "fix"
    ),
    "a loss without reduction": returning(
        "sequential(), x, y, nn.CrossEntropyLoss(reduction='none')", "a scalar loss", ".mean()"
    ),
    "a loss that takes no targets": returning(
        "sequential(), x, y, lambda o: o.mean()", "loss(output, targets)", "leave the targets out"
    ),
    "a loss that raises": WrongFactory(
        "def loss(o, t):\n        return o.mean() + t['key']\n    return sequential(), x, y, loss",
        "return o.mean() + t['key']",
        ("IndexError", "output float32 (6, 3)", "fix"),
    ),
    "a model given as a class": returning("nn.ReLU, x, y, F.cross_entropy", "the class, not an instance"),
    "a model that is a function": returning("(lambda x: x), x, y, F.cross_entropy", "a torch.nn.Module"),
    "a model that raises": WrongFactory(
        "return Fails(4, 3), x, y, F.cross_entropy",
        'raise KeyError("no such key")',
        ("KeyError: 'no such key'", "model(inputs) was called with float32 (6, 4)", "fix"),
    ),
    "a model that needs two inputs": returning(
        "nn.Bilinear(4, 4, 3), x, y, F.cross_entropy", "TypeError", "input2", "a tuple (positional)"
    ),
    "inputs that are a list": returning("sequential(), [x], y, F.cross_entropy", "inputs as a tensor", "fix"),
    "inputs that are a loader": returning(
        "sequential(), torch.utils.data.DataLoader(x), y, F.cross_entropy", "pass one batch"
    ),
    "an empty batch": returning("sequential(), x[:0], y[:0], F.cross_entropy", "at least one sample"),
    "an optimizer given as a class": returning(
        "sequential(), x, y, F.cross_entropy, torch.optim.AdamW", "the class AdamW", "fix"
    ),
    "a scheduler as optimizer": returning(
        "sequential(), x, y, F.cross_entropy, "
        "torch.optim.lr_scheduler.StepLR(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1), 5)",
        *("StepLR", "fix"),
    ),
    "a factory that returns nothing": WrongFactory(
        "Net()", "def make():", ("NoneType", "return for example")
    ),
    "a factory that returns a model": returning("sequential()", "Sequential", "return for example"),
    "a factory that returns a list": returning("[sequential(), x]", "a list of 2", "return for example"),
    "a factory with an unknown field": returning(
        "{'model': sequential(), 'inputs': x, 'labels': y}", "'labels'", "return for example"
    ),
    "a factory that raises": WrongFactory(
        "raise ValueError('no data')", "raise ValueError('no data')", ("ValueError: no data", "make() runs")
    ),
    "a factory that raises from another error": WrongFactory(
        "try:\n        {}['a']\n    except KeyError as e:\n        raise ValueError('no data') from e",
        "raise ValueError('no data') from e",
        ("ValueError: no data", "KeyError: 'a'"),
    ),
    "a factory that reads a missing file": WrongFactory(
        "return torch.load('weights.pt')",
        "return torch.load('weights.pt')",
        ("FileNotFoundError", "working directory"),
    ),
    "a factory that needs arguments": WrongFactory(
        "return sequential(), x",
        "return sequential(), x",
        ("needs width", "give these arguments defaults"),
        "def make(width):",
    ),
    "a factory that exits": WrongFactory(
        "raise SystemExit(0)", "raise SystemExit(0)", ("SystemExit", "__main__")
    ),
    "a module that fails on import": WrongFactory(
        "return None",
        "import no_such_package",
        ("ModuleNotFoundError", "install no_such_package"),
        "import no_such_package\ndef make():",
    ),
    "a module that divides by zero": WrongFactory(
        "return None", "rate = 1 / 0", ("ZeroDivisionError", "fix"), "rate = 1 / 0\ndef make():"
    ),
    "a syntax error": WrongFactory("return (", "return (", ("SyntaxError", "fix")),
    "a mistake that recurses": WrongFactory(
        "return make()", "return make()", ("RecursionError", "make() runs")
    ),
}


def write(folder, wrong: WrongFactory) -> None:
    (folder / "wrong.py").write_text(f"{HEADER}{wrong.head}\n    {wrong.body}\n")


def assert_is_explained(wrong: WrongFactory, code: int, out: str, err: str) -> None:
    assert (code, out) == (2, ""), err
    assert "wrong.py" in err
    assert wrong.line in err
    for words in wrong.words:
        assert words in err
    assert "fix" in err
    for frame in ("/leadline/", "torch/nn/modules", "Traceback", "bug in leadline", "<frozen"):
        assert frame not in err
    assert len(err.splitlines()) <= 20


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_factory_is_explained_with_the_users_own_line(run, tmp_path, name):
    write(tmp_path, WRONG[name])
    done = run("check", "wrong.py:make")
    assert_is_explained(WRONG[name], done.code, done.out, done.err)


@pytest.mark.parametrize("command", [("fix",), ("forecast",), ("check", "--no-weights")])
@pytest.mark.parametrize(
    "name", ["a wrong width in a sequential", "a loss given as a class", "a factory that raises"]
)
def test_every_command_that_runs_a_factory_explains_its_error(run, tmp_path, name, command):
    write(tmp_path, WRONG[name])
    done = run(*command, "wrong.py:make")
    assert_is_explained(WRONG[name], done.code, done.out, done.err)


@pytest.mark.parametrize(
    "name",
    [
        "a label out of range",
        pytest.param("a wrong width in one's own module", marks=pytest.mark.slow),
        pytest.param("a factory that raises", marks=pytest.mark.slow),
    ],
)
def test_a_wrong_factory_is_explained_by_the_installed_command(tmp_path, name):
    write(tmp_path, WRONG[name])
    command = [sys.executable, "-m", "leadline", "check", "wrong.py:make"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False)
    assert_is_explained(WRONG[name], done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("wrong.py:mak", "did you mean make?"),
        ("rong.py:make", "did you mean wrong.py?"),
        ("wrong:make.deeper", "which is not defined there"),
        ("no_such_module:make", "check the spelling"),
    ],
)
def test_a_target_that_does_not_exist_gets_a_suggestion(run, tmp_path, target, words):
    write(tmp_path, WRONG["a factory that returns nothing"])
    done = run("check", target)
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert "Traceback" not in done.err


def test_in_python_the_error_stays_the_users_and_a_note_says_what_leadline_knows():
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(4, 2))
    with pytest.raises(RuntimeError, match="cannot be multiplied") as caught:
        leadline.check(model, torch.randn(3, 4), torch.zeros(3, dtype=torch.long), functional.cross_entropy)
    (note,) = caught.value.__notes__
    assert "1 (Linear)" in note
    assert "takes 4 features and gets 8" in note


def test_a_note_of_the_users_own_is_kept(run, tmp_path):
    body = "error = ValueError('no data')\n    error.add_note('ask the data team')\n    raise error"
    write(tmp_path, WrongFactory(body, "raise error", ()))
    assert "ask the data team" in run("check", "wrong.py:make").err


def test_a_long_message_of_torch_is_cut(run, tmp_path):
    body = dedent("""raise RuntimeError("\\n".join(f"frame {i}" for i in range(100)))""")
    write(tmp_path, WrongFactory(body, "raise", ()))
    err = run("check", "wrong.py:make").err
    assert "frame 3" in err
    assert "more lines" in err
    assert len(err.splitlines()) <= 20
