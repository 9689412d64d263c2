"""Several optimizers that step together are read, stepped, restored and copied as one."""

import json
from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import leadline
from leadline.errors import InputError
from leadline.fixes._engine.copy import copy_case
from leadline.fixes._engine.trial import train_step

pytestmark = pytest.mark.long


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(32, 8, generator=generator), torch.randint(0, 4, (32,), generator=generator)


def numbers(report: leadline.Report) -> dict:
    """The report as JSON, without which optimizer each group belongs to."""
    content = json.loads(report.to_json())
    for group in content["profile"]["optimizer"]["groups"]:
        group.pop("member", None)
    return content


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
def test_a_list_of_one_optimizer_gives_the_report_of_the_one(make):
    x, y = batch()
    reports = []
    for as_list in (False, True):
        model = net()
        optimizer = make(model.parameters(), lr=0.01)
        given = [optimizer] if as_list else optimizer
        reports.append(leadline.check(model, x, y, functional.cross_entropy, given).to_json())
    assert reports[0] == reports[1]


@settings(max_examples=6, deadline=None)
@given(cut=st.integers(1, 5), momentum=st.sampled_from([0.0, 0.9]), decay=st.sampled_from([0.0, 0.01]))
def test_sgd_split_into_two_optimizers_gives_the_numbers_of_one_with_two_groups(cut, momentum, decay):
    x, y = batch()
    options = {"momentum": momentum, "weight_decay": decay}
    reports = []
    for split in (False, True):
        model = net()
        parameters = list(model.parameters())
        first, second = parameters[:cut], parameters[cut:]
        if split:
            optimizer = [
                torch.optim.SGD(first, lr=0.05, **options),
                torch.optim.SGD(second, lr=0.02, **options),
            ]
        else:
            groups = [{"params": first, "lr": 0.05}, {"params": second, "lr": 0.02}]
            optimizer = torch.optim.SGD(groups, **options)
        reports.append(numbers(leadline.check(model, x, y, functional.cross_entropy, optimizer)))
    assert reports[0] == reports[1]


def two_kinds(model: nn.Module) -> list[torch.optim.Optimizer]:
    matrices = [each for each in model.parameters() if each.dim() == 2]
    vectors = [each for each in model.parameters() if each.dim() != 2]
    return [
        torch.optim.SGD(matrices, lr=0.1, momentum=0.9),
        torch.optim.Adam(vectors, lr=0.01, weight_decay=0.1),
    ]


def test_the_record_says_which_tensor_belongs_to_which_optimizer():
    model, (x, y) = net(), batch()
    record = leadline.trace(model, x, y, functional.cross_entropy, two_kinds(model)).optimizer
    assert record.name == "SGD + Adam"
    owners = {name: (group.optimizer, group.member) for group in record.groups for name in group.parameters}
    assert owners["0.weight"] == ("SGD", 0)
    assert owners["1.bias"] == ("Adam", 1)


def test_a_rule_about_one_kind_of_optimizer_reads_the_groups_of_that_kind():
    model, (x, y) = net(), batch()
    report = leadline.check(model, x, y, functional.cross_entropy, two_kinds(model))
    (finding,) = [each for each in report.findings if each.code == "W605"]
    assert finding.where == "Adam"
    assert "0.1" in finding.message


def test_all_optimizers_are_restored_bit_for_bit():
    model, (x, y) = net(), batch()
    optimizers = two_kinds(model)
    for _ in range(3):
        functional.cross_entropy(model(x), y).backward()
        for each in optimizers:
            each.step()
            each.zero_grad()
    before = deepcopy([model.state_dict(), *(each.state_dict() for each in optimizers)])
    leadline.check(model, x, y, functional.cross_entropy, optimizers)
    after = [model.state_dict(), *(each.state_dict() for each in optimizers)]
    torch.testing.assert_close(after, before, rtol=0, atol=0)


def test_a_step_of_several_optimizers_is_the_step_of_the_users_loop():
    x, y = batch()
    own, copied = net(), net()
    optimizers = two_kinds(own)
    for _ in range(4):
        for each in optimizers:
            each.zero_grad()
        functional.cross_entropy(own(x), y).backward()
        for each in optimizers:
            each.step()
    case = copy_case(leadline.Case(copied, x, y, functional.cross_entropy, two_kinds(copied)))
    for _ in range(4):
        train_step(case, (x, y))
    torch.testing.assert_close(case.model.state_dict(), own.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(copied.state_dict(), net().state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda model: [], "leave it out if there is none"),
        (lambda model: [torch.optim.SGD(model.parameters(), lr=0.1), "AdamW"], "with str"),
        (lambda model: {"all": torch.optim.SGD(model.parameters(), lr=0.1)}, "a list of the optimizers"),
    ],
)
def test_optimizers_that_cannot_be_used_together_are_refused(make, words):
    model, (x, y) = net(), batch()
    with pytest.raises(InputError, match=words):
        leadline.check(model, x, y, functional.cross_entropy, make(model))


def test_a_parameter_in_two_optimizers_is_a_finding_and_everything_is_restored():
    model, (x, y) = net(), batch()
    optimizers = [
        torch.optim.AdamW(model.parameters(), lr=1e-3),
        torch.optim.SGD(model[0].parameters(), lr=0.1),
    ]
    before = deepcopy([model.state_dict(), *(each.state_dict() for each in optimizers)])
    report = leadline.check(model, x, y, functional.cross_entropy, optimizers)
    after = [model.state_dict(), *(each.state_dict() for each in optimizers)]
    (finding,) = [each for each in report.findings if each.name == "doubled-parameters"]
    assert "0.weight" in finding.message
    assert finding.severity == "warning"
    torch.testing.assert_close(after, before, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_a_parameter_twice_in_one_optimizer_is_a_finding():
    model, (x, y) = net(), batch()
    optimizer = torch.optim.SGD([*model.parameters(), model[0].weight], lr=0.1)
    report = leadline.check(model, x, y, functional.cross_entropy, optimizer)
    assert "doubled-parameters" in {each.name for each in report.findings}


def test_a_fix_for_several_optimizers_is_proved_applied_undone_and_written_as_code():
    x, y = batch()

    def broken() -> tuple[nn.Sequential, list[torch.optim.Optimizer]]:
        model = net()
        parameters = list(model.parameters())
        return model, [torch.optim.SGD(parameters[:2], lr=60.0), torch.optim.SGD(parameters[2:], lr=60.0)]

    model, optimizers = broken()
    repair = leadline.fix(model, x, y, functional.cross_entropy, optimizers, budget=20)
    assert repair.recipe.edits
    assert isinstance(repair.optimizer, tuple)
    repaired = [group["lr"] for each in repair.optimizer for group in each.param_groups]
    assert repaired != [60.0, 60.0]
    leadline.apply(model, repair.recipe, optimizers)
    assert [group["lr"] for each in optimizers for group in each.param_groups] == repaired
    leadline.undo(model)
    assert [group["lr"] for each in optimizers for group in each.param_groups] == [60.0, 60.0]
    again, others = broken()
    exec(repair.code, {"model": again, "optimizers": others})
    assert [group["lr"] for each in others for group in each.param_groups] == repaired
