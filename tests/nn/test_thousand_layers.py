"""The headline example: it runs, stops safely, and goes on as if it had not stopped."""

import importlib.util
import json
import os
import signal
import sys

import pytest
import torch

from tests.support import ROOT

pytest.importorskip("safetensors")


def load_example():
    spec = importlib.util.spec_from_file_location("thousand_layers", ROOT / "examples" / "thousand_layers.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["thousand_layers"] = module
    spec.loader.exec_module(module)
    return module


example = load_example()
RUN = {
    "scheme": "residual-linear",
    "depth": 3,
    "steps": 6,
    "seed": 0,
    "lr": 0.02,
    "width": 16,
    "time": 16,
    "batch": 4,
}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_stopped_by_ctrl_c_goes_on_as_if_it_had_not_stopped(tmp_path, monkeypatch, optimizer):
    if optimizer == "muon" and not hasattr(torch.optim, "Muon"):
        pytest.skip("torch has Muon since 2.9")
    run = example.Run(**RUN, optimizer=optimizer)
    whole = example.train(run, tmp_path / "whole", test_every=2)
    step, taken = torch.optim.AdamW.step, []

    def interrupted(self, closure=None):
        taken.append(1)
        if len(taken) == 3:
            os.kill(os.getpid(), signal.SIGINT)  # in the middle of the third step
        return step(self, closure)

    monkeypatch.setattr(torch.optim.AdamW, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        example.train(run, tmp_path / "cut", test_every=2)
    assert len(taken) == 3
    resumed = example.train(run, tmp_path / "cut", test_every=2)
    assert resumed["train"] == whole["train"]
    assert resumed["held_out"] == whole["held_out"]
    assert not list(tmp_path.glob("*/*.part"))


def test_published_runs_learn_and_post_norm_does_not():
    published = json.loads((ROOT / "benchmarks" / "results" / "thousand_layers.json").read_text())
    for record in published["runs"]:
        last = record["held_out"][-1][1]
        if record["scheme"] == "post":
            assert last > record["unigram"] - 0.1
        elif record["scheme"] == "residual-linear" and len(record["train"]) == record["steps"]:
            assert last < record["unigram"] - 0.5
    deep = {(r["scheme"], r["depth"]) for r in published["runs"]}
    assert {("residual-linear", 1000), ("post", 1000)} <= deep
    assert sum(r["depth"] == 200 and r["scheme"] == "residual-linear" for r in published["runs"]) >= 3
