"""The integrations where two processes train one model, and in mixed precision; each with the real library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from leadline.monitor.runfile.read import Run
from tests.support import ROOT
from tests.support.library_loops import (
    STEPS,
    accelerate_loop,
    huggingface_train,
    lightning_fit,
    needs,
    same,
    weights,
)

LIBRARIES = [pytest.param(name, marks=needs(name)) for name in ("lightning", "transformers", "accelerate")]


def trained(library: str, folder: Path, store: Path | None) -> list[torch.Tensor]:
    """The weights after training in bfloat16, watched if there is a place for the run file."""
    if library == "lightning":
        from leadline.integrations.lightning import LeadlineCallback

        callbacks = [LeadlineCallback(store=store, every=4)] if store else []
        return weights(lightning_fit(folder, callbacks, precision="bf16-mixed"))
    if library == "transformers":
        from leadline.integrations.huggingface import LeadlineCallback

        callbacks = [LeadlineCallback(store=store, every=4)] if store else []
        return weights(huggingface_train(folder, callbacks, bf16=True)[0])
    return weights(accelerate_loop(store, watched=store is not None, precision="bf16"))


@pytest.fixture(autouse=True)
def fresh():
    """Accelerate keeps its precision for the process."""
    yield
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("library", LIBRARIES)
def test_training_in_mixed_precision_is_watched_and_unchanged(library: str, tmp_path: Path):
    path = tmp_path / "run.leadline"
    plain = trained(library, tmp_path, None)
    fresh_state = sys.modules.get("accelerate.state")
    if fresh_state is not None:
        fresh_state.AcceleratorState._reset_state(reset_partial_state=True)
    assert same(trained(library, tmp_path, path), plain)
    with Run(path) as run:
        assert all(0 < each < 5 for each in run.scalars("loss")[1])
        assert all(each > 0 for each in run.scalars("grad_norm")[1])
        assert [event.kind for event in run.events() if event.kind == "warning"] == []


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> tuple[Path, list[dict]]:
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    paths = [str(ROOT / "src"), str(ROOT)]
    run = subprocess.run(
        [*command, str(ROOT / "tests" / "support" / "two_rank_integrations.py"), str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return folder, [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("library", LIBRARIES)
def test_two_processes_are_watched_and_train_as_without(ranks, library: str):
    folder, found = ranks
    for each in found:
        assert each[library]["watched"] == each[library]["plain"]
        assert each[library]["trouble"] == ""
    with Run(folder / f"{library}.leadline") as run:
        assert (run.info.world_size, run.info.rank) == (2, 0)
        assert len(run.scalars("loss")[0]) == len(run.steps) >= STEPS // 4
        assert all(each > 0 for each in run.scalars("grad_norm")[1])
        assert any(event.kind == "sample" for event in run.events())
