"""A fixture that runs the command line in this process, in an empty folder, and captures its output."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent

import pytest

from leadline.cli import main

TARGETS = """
import torch
from torch import nn

def healthy():
    return nn.Linear(4, 4), torch.randn(8, 4), torch.randn(8, 4), nn.functional.mse_loss

def poisoned():
    return nn.Linear(4, 4), torch.full((8, 4), torch.nan), torch.randn(8, 4), nn.functional.mse_loss

def weightless():
    return nn.PReLU(), torch.randn(8, 4), torch.randn(8, 4), nn.functional.mse_loss

class Talker(nn.Linear):
    def forward(self, x):
        print("forward sees", x.dtype)
        return super().forward(x)

def talker():
    print("made")
    return Talker(4, 4), torch.randn(8, 4), torch.randn(8, 4), nn.functional.mse_loss

class Faulty(nn.Linear):
    def forward(self, x):
        raise ZeroDivisionError("in the user's forward")

def faulty():
    return Faulty(4, 4), torch.randn(8, 4), torch.randn(8, 4), nn.functional.mse_loss

def misshapen():
    return nn.Linear(4, 4), torch.randn(8, 5), torch.randn(8, 4), nn.functional.mse_loss

def truncated():
    raise EOFError("the user's checkpoint is empty")

def interrupted():
    raise KeyboardInterrupt

def marker():
    open("factory-ran", "w").close()
    return healthy()
"""


@dataclass(frozen=True)
class CommandResult:
    """What a command returned and printed."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """`run("check", ...)` in an empty folder; `nets.py` there has targets of many kinds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "nets.py").write_text(dedent(TARGETS))

    def run(*arguments: str) -> CommandResult:
        capsys.readouterr()
        code = main(arguments)
        caught = capsys.readouterr()
        return CommandResult(code, caught.out, caught.err)

    return run
