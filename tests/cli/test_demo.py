"""The bundled networks are what the demo says: one does not train, its twin does."""

import pytest
import torch

from leadline.lab import demo
from leadline.records import Recipe
from leadline.records.report import Report
from leadline.report.depth import gains

pytestmark = pytest.mark.long


def losses(case, steps):
    """The loss before each step of plain training."""
    for _ in range(steps):
        loss = case.loss(case.model(case.inputs), case.targets)
        case.optimizer.zero_grad()
        loss.backward()
        case.optimizer.step()
        yield loss.item()


def test_the_deep_network_stays_at_a_coin_toss_and_its_twin_learns():
    torch.manual_seed(0)
    *_, stuck = losses(demo.deep_mlp(), 25)
    *_, learnt = losses(demo.residual_mlp(), 25)
    assert stuck == pytest.approx(torch.tensor(2.0).log().item(), abs=1e-3)
    assert learnt < 0.5


def test_the_twins_have_the_same_number_of_layers_and_the_same_data():
    sick, healthy = demo.deep_mlp(), demo.residual_mlp()
    counts = [
        sum(isinstance(each, torch.nn.Linear) for each in case.model.modules()) for case in (sick, healthy)
    ]
    assert counts == [demo.LAYERS, demo.LAYERS]
    assert torch.equal(sick.inputs, healthy.inputs)


def test_the_data_do_not_touch_the_global_generator():
    before = torch.get_rng_state()
    demo.two_spirals(10, torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
def test_the_demo_tells_the_failure_the_repair_and_both_trainings(run, tmp_path):
    done = run("demo", "--steps", "3", "--html", "demo.html")
    assert done.code == 0
    assert done.out.startswith("DOES NOT TRAIN: ")
    assert "leadline explain I302" in done.out  # the root; what it leads to stands below it
    assert "leads to B201" in done.out
    assert "DOES NOT TRAIN → TRAINS" in done.out
    assert "of the points untreated" in done.out
    assert "leadline fix leadline.lab.demo:deep_mlp" in done.err
    assert "demo.html" in done.err
    assert "<svg" in (tmp_path / "demo.html").read_text()


def test_check_tells_the_twins_apart(run):
    assert run("check", "leadline.lab.demo:deep_mlp", "-q").code == 1
    done = run("check", "leadline.lab.demo:residual_mlp", "-q")
    assert done.code == 0
    assert done.out.startswith("TRAINS: ")


def test_the_page_and_the_rule_agree_on_the_change_a_block(run):
    report = Report.from_json(run("check", "leadline.lab.demo:deep_mlp", "--format", "json").out)
    found = next(finding for finding in report.findings if finding.code == "B201")
    assert gains(report.profile, 0)[1] == pytest.approx(found.evidence["gain_per_block"])


def test_the_trainings_of_the_demo_end_after_their_processor_time_with_equal_steps():
    seconds = iter(range(0, 10_000, 6))
    trial, _ = demo.compare_training(
        Recipe(leadline="", model="Sequential"), 50, clock=lambda: float(next(seconds))
    )
    assert len(trial.untreated) == len(trial.treated) < 10
