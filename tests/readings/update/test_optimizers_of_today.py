"""The laws of the update for Muon, Lion, Sophia, Shampoo, SOAP, schedule-free and Adafactor."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leadline
from benchmarks.footprint import differences, footprint
from leadline import Case, InputError
from leadline.joint_optimizer import members_of
from leadline.nn import LanguageModel
from leadline.ops.optimizers import decay_share, family_of, find_rule, group_rule
from leadline.readings.update.reading import read_update
from leadline.tracer.names import index_model
from leadline.tracer.optimizer import read_optimizer
from tests.support.optimizers import OPTIMIZERS, AdamWScheduleFree, Lion, SimpleMuon, Spectron


def case_with(make, rate: float = 1.0) -> Case:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 3))
    optimizer = make(model)
    for member in members_of(optimizer):
        for group in member.param_groups:
            group["lr"] *= rate
    return Case(model, torch.randn(48, 12), torch.randint(3, (48,)), F.cross_entropy, optimizer)


def train(case: Case, steps: int) -> None:
    for _ in range(steps):
        case.model.zero_grad()
        case.loss(case.model(case.inputs), case.targets).backward()
        for member in members_of(case.optimizer):
            member.step()


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_reading_restores_the_optimizer_bit_for_bit(name: str, steps: int):
    case = case_with(OPTIMIZERS[name])
    train(case, steps)
    cases = [
        Case(case.model, case.inputs, case.targets, case.loss, each) for each in members_of(case.optimizer)
    ]
    before = [footprint(each) for each in cases]
    read_update(case, None)
    assert [differences(old, footprint(each)) for old, each in zip(before, cases, strict=True)] == [[]] * len(
        cases
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_measured_change_approaches_the_predicted_one_as_the_rate_falls(name: str):
    ratio = read_update(case_with(OPTIMIZERS[name], rate=0.02), None).ratio
    assert ratio == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_safe_rate_does_not_depend_on_the_present_one(name: str):
    slow, fast = (read_update(case_with(OPTIMIZERS[name], rate=each), None).safe_lr for each in (0.1, 1.0))
    assert slow == pytest.approx(fast, rel=0.3)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_one_of_them_has_a_family(name: str):
    kinds = [type(each).__name__ for each in members_of(case_with(OPTIMIZERS[name]).optimizer)]
    assert {family_of(kind) for kind in kinds} == {"adam"}


def test_a_schedule_free_optimizer_in_evaluation_mode_is_named_with_what_to_call():
    case = case_with(lambda m: AdamWScheduleFree(m.parameters()))
    with pytest.raises(InputError, match=r"optimizer.train\(\)"):
        leadline.update(case)
    assert "training mode" in leadline.check(case, rehearse=False).coverage.gaps[0].why


def test_an_optimizer_whose_step_raises_is_a_gap_and_not_an_error():
    class Second(torch.optim.SGD):
        def step(self, closure=None) -> None:
            raise ValueError("needs a second derivative")

    report = leadline.check(case_with(lambda m: Second(m.parameters(), lr=0.1)), rehearse=False)
    assert any("needs a second derivative" in gap.why for gap in report.coverage.gaps)


def record_of(optimizer: torch.optim.Optimizer, model: nn.Module):
    return read_optimizer(optimizer, index_model(model))


def test_decoupled_decay_takes_rate_times_decay_whatever_the_momentum():
    model = nn.Linear(4, 4, bias=False)
    muon = record_of(SimpleMuon(model.parameters(), lr=0.02, weight_decay=0.1, momentum=0.95), model)
    sgd = record_of(torch.optim.SGD(model.parameters(), lr=0.02, weight_decay=0.1, momentum=0.95), model)
    assert decay_share(muon, muon.groups[0]) == pytest.approx(0.002)
    assert decay_share(sgd, sgd.groups[0]) == pytest.approx(0.04)


@pytest.mark.parametrize("momentum", [0.0, 0.9, 0.95])
def test_the_decay_per_step_is_what_training_without_a_gradient_removes(momentum: float):
    """With a gradient of zero only decay acts: its share of the weight is measured."""
    for make in (
        lambda p: torch.optim.SGD(p, lr=1e-4, weight_decay=0.1, momentum=momentum),
        lambda p: torch.optim.AdamW(p, lr=1e-4, weight_decay=0.1),
        lambda p: SimpleMuon(p, lr=1e-4, weight_decay=0.1, momentum=momentum),
        lambda p: Lion(p, lr=1e-4, weight_decay=0.1),
    ):
        model = nn.Linear(1, 1, bias=False).double()
        nn.init.ones_(model.weight)
        optimizer = make(list(model.parameters()))
        share = decay_share(record := record_of(optimizer, model), record.groups[0])
        for _ in range(200):
            model.weight.grad = torch.zeros_like(model.weight)
            before = model.weight.item()
            optimizer.step()
        assert 1 - model.weight.item() / before == pytest.approx(share, rel=0.02)


def test_muon_under_another_name_is_recognized_by_its_options():
    model = nn.Linear(4, 4, bias=False)
    record = record_of(Spectron(model.parameters()), model)
    assert record.groups[0].optimizer == "Spectron"
    assert group_rule(record, record.groups[0]).step == "spectral"
    assert find_rule("Odd", {"ns_steps": 5}).step == "spectral"


def test_groups_that_say_whether_they_use_muon_are_believed():
    assert find_rule("MuonWithAuxAdam", {"use_muon": True}).step == "spectral"
    assert find_rule("MuonWithAuxAdam", {"use_muon": False}).step == "rescaled"


def test_a_subclass_of_a_known_optimizer_has_its_rule():
    class Plain(torch.optim.SGD):
        pass

    model = nn.Linear(4, 4)
    record = record_of(Plain(model.parameters(), lr=0.1), model)
    assert record.groups[0].known_as == "SGD"
    assert group_rule(record, record.groups[0]).sums_momentum


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("PagedAdamW8bit", "adamw"),
        ("Lion8bit", "lion"),
        ("DistributedShampoo", "shampoo"),
        ("SingleDeviceMuonWithAuxAdam", "muon"),
        ("SGDScheduleFree", "sgdschedulefree"),
    ],
)
def test_variants_share_the_row_of_their_kind(name: str, row: str):
    assert find_rule(name) == find_rule(row)


def test_a_name_that_only_contains_a_row_by_chance_is_unknown():
    assert find_rule("LambdaOptimizer") is None
    assert find_rule("DesignedSearch") is None


def language_case(make) -> Case:
    torch.manual_seed(0)
    model = LanguageModel(61, 32, 2, 4, scheme="pre")
    ids = torch.randint(61, (4, 12))

    def loss(logits, targets):
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return Case(model, ids, ids.roll(-1, 1), loss, make(model))


def codes(case: Case) -> dict[str, str]:
    return {each.code: each.where for each in leadline.check(case, rehearse=False, probes=False).findings}


def test_an_embedding_and_a_head_given_to_muon_are_noted():
    assert "embedding" in codes(language_case(lambda m: split_all(m)))["U526"]


def split_all(model: nn.Module) -> list[torch.optim.Optimizer]:
    matrices = [each for each in model.parameters() if each.ndim == 2]
    others = [each for each in model.parameters() if each.ndim != 2]
    return [SimpleMuon(matrices), torch.optim.AdamW(others)]


def test_muon_on_the_hidden_matrices_gets_neither_that_note_nor_one_about_its_decay():
    def hidden(model: nn.Module) -> list[torch.optim.Optimizer]:
        inside = {name for name, each in model.named_parameters() if each.ndim == 2 and "stack" in name}
        named = dict(model.named_parameters())
        muon = SimpleMuon([named[name] for name in inside], lr=0.02, weight_decay=0.1)
        return [muon, torch.optim.AdamW([each for name, each in named.items() if name not in inside])]

    found = codes(language_case(hidden))
    assert "U526" not in found
    assert "U524" not in found


def test_a_group_that_names_its_algorithm_is_read_by_it():
    assert find_rule("Unheard", {"algorithm": "muon"}).step == "spectral"
    assert find_rule("Unheard", {"algorithm": "adamw"}) == find_rule("AdamW")
    assert find_rule("Unheard", {"algorithm": "unheard"}) is None


def test_a_decay_that_ignores_the_rate_is_read_from_the_options():
    assert find_rule("AdamW", {"fixed_decay": True}).decay == "fixed"
    assert find_rule("AdamW", {"fixed_decay": False}).decay == "decoupled"
