"""Two real processes, by torchrun with gloo: data parallel and sharded training, against one process's truth."""

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
from tests.support.two_rank_watch import BLOCKS, STEPS, batch, stack

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not hasattr(torch.cpu.Stream, "record_event"), reason="this torch cannot shard on a CPU"
    ),
]

CLOSE = 1e-4  # relative: two processes add up in another order, and AdamW divides by small numbers


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> tuple[Path, list[dict]]:
    """What each rank wrote down; all tests share one run, as starting processes takes seconds."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    source = ROOT / "src"
    run = subprocess.run(
        [*command, str(ROOT / "tests" / "support" / "two_rank_watch.py"), str(folder)],
        env={**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return folder, [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def truth(*parts: int) -> dict[str, list[float]]:
    """One process on these parts of the batch: norms of the gradient and of what each step changed."""
    model = stack()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = torch.cat([batch(part) for part in parts])
    found: dict[str, list[float]] = {"grad_norm": [], "update_norm": []}
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        before = torch.cat([each.detach().flatten() for each in model.parameters()])
        found["grad_norm"].append(
            torch.cat([each.grad.flatten() for each in model.parameters()]).norm().item()
        )
        optimizer.step()
        after = torch.cat([each.detach().flatten() for each in model.parameters()])
        found["update_norm"].append((after - before).norm().item())
    return found


@pytest.mark.parametrize(
    ("watched", "plain"),
    [
        ("replicated", "plain"),
        ("sharded", "sharded, not watched"),
        ("sharded by budget", "sharded, not watched"),
    ],
)
def test_training_is_the_same_bit_for_bit(ranks, watched: str, plain: str):
    for found in ranks[1]:
        assert found[watched]["losses"] == found[plain]["losses"]
        assert found[watched]["weights"] == found[plain]["weights"]


@pytest.mark.parametrize("how", ["sharded", "sharded, traced by turns"])
@pytest.mark.parametrize("name", BLOCKS)
def test_a_sharded_pass_is_sampled_as_if_it_were_whole(ranks, how: str, name: str):
    found, whole = ranks[1][0][how], ranks[1][0]["replicated"]
    assert found["trouble"] == ""
    for row, expected in zip(found["blocks"][name], whole["blocks"][name], strict=True):
        assert row == pytest.approx(expected, rel=CLOSE)


@pytest.mark.parametrize("how", ["replicated", "sharded"])
def test_parameters_are_known_by_their_own_names_and_blocks(ranks, how: str):
    homes, model = ranks[1][0][how]["parameter_blocks"], ranks[1][0][how]["model"]
    assert model == "Sequential"
    assert list(homes) == [name for name, _ in stack().named_parameters()]
    assert list(homes.values()) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_gathered_parameters_are_named_also_where_a_module_uses_those_of_its_child(ranks):
    found, whole = ranks[1][0]["sharded transformer"], ranks[1][0]["transformer"]
    assert found["unmeasured"] == whole["unmeasured"]  # nothing but what is unseen of a whole model too
    for name in BLOCKS:  # of the first step: then the whole one goes its own way, by its own gradient
        assert found["blocks"][name][0] == pytest.approx(whole["blocks"][name][0], rel=CLOSE)


def test_a_user_hook_on_a_sharded_layer_is_part_of_the_pass(ranks):
    found, whole = ranks[1][0]["sharded and hooked"], ranks[1][0]["hooked"]
    assert found["unmeasured"] == whole["unmeasured"]
    for name in BLOCKS:
        assert found["blocks"][name][0] == pytest.approx(whole["blocks"][name][0], rel=CLOSE)


def test_gathered_parameters_in_half_precision_are_sampled_too(ranks):
    found, whole = ranks[1][0]["sharded in bfloat16"], ranks[1][0]["replicated"]
    assert found["trouble"] == ""
    assert found["blocks"]["forward_ms"][0] == pytest.approx(whole["blocks"]["forward_ms"][0], rel=0.02)


def test_a_tensor_parallel_pass_is_not_sampled_and_the_watch_says_so(ranks):
    for found in ranks[1]:
        assert found["split"]["trouble"] == ""
        for name, expected in truth(0).items():
            assert found["split"][name] == pytest.approx(expected, rel=CLOSE)
        assert [message for kind, message, _ in found["split"]["events"] if kind == "warning"] == [
            "no step can be sampled because its parameters stay sharded during the pass. Run `leadline.check` before"
        ]


def test_a_non_finite_loss_on_one_rank_does_not_hang_the_others(ranks):
    """Only shards that all ranks measure at the same step can be measured: no rank looks when it likes."""
    for found in ranks[1]:
        assert found["sharded and spoilt"]["trouble"] == ""
        assert any(kind == "non-finite" for kind, _, _ in found["sharded and spoilt"]["events"])


@pytest.mark.parametrize("how", ["replicated", "sharded"])
@pytest.mark.parametrize("name", ["grad_norm", "update_norm"])
def test_norms_are_those_of_the_whole_model_on_the_first_rank(ranks, how: str, name: str):
    assert ranks[1][0][how]["trouble"] == ""
    assert ranks[1][0][how][name] == pytest.approx(truth(0, 1)[name], rel=CLOSE)


def test_norms_of_shards_are_the_same_on_every_rank(ranks):
    first, second = ranks[1]
    assert first["sharded"]["grad_norm"] == second["sharded"]["grad_norm"]


def test_ranks_measure_shards_at_the_same_steps_though_each_has_its_own_clock(ranks):
    first, second = ranks[1]
    assert first["sharded by budget"]["trouble"] == second["sharded by budget"]["trouble"] == ""
    assert first["sharded by budget"]["grad_norm"] == second["sharded by budget"]["grad_norm"] != []


def test_the_first_rank_writes_the_run_file(ranks):
    run = Run(ranks[0] / "run.leadline")
    assert (run.info.world_size, run.info.rank) == (2, 0)
    assert list(run.steps) == list(range(STEPS))


@pytest.mark.parametrize("how", ["replicated", "sharded"])
def test_only_the_first_rank_samples_passes_by_plan(ranks, how: str):
    kinds = [[kind for kind, _, _ in found[how]["events"]] for found in ranks[1]]
    assert kinds[0].count("sample") == STEPS
    assert "sample" not in kinds[1]


def test_an_anomaly_is_attributed_to_the_rank_on_which_it_arose(ranks):
    """Gradients are averaged, so all ranks see theirs spoilt; the loss is the rank's own."""
    anomalies = [
        (rank, message) for kind, message, rank in ranks[1][0]["spoilt"]["events"] if kind == "non-finite"
    ]
    assert (0, "grad_norm is not finite") in anomalies
    assert (1, "rank 1: loss and grad_norm are not finite") in anomalies


def test_processes_that_train_without_exchanging_gradients_are_said_to_drift(ranks):
    first, second = ranks[1]
    assert [first[how]["trouble"] for how in ("alone together", "in step")] == ["", ""]
    assert "T831" in first["alone together"]["codes"]
    assert "T831" not in second["alone together"]["codes"]  # the first process says it for all
    assert "T831" not in first["in step"]["codes"]
