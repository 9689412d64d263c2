"""Networks that are trained together end where each one ends alone with torch's own optimizer."""

import pytest
import torch

from leadline.errors import InputError
from leadline.lab.race.grid import Grid
from leadline.lab.race.tasks import (
    TASKS,
    ModelSize,
    all_variants,
    base_rate,
    cross_entropy,
    find_task,
    find_variant,
)
from leadline.lab.race.training import OPTIMIZERS, StackedOptimizer, train_bundle
from leadline.nn import param_groups

SIZE = ModelSize(width=8, time=16)


def cell(**changes):
    common = {"data": "text", "scheme": "pre", "depth": 2, "optimizer": "adam", "rate": 1e-2, "seed": 0}
    return {**common, "steps": 4, "batch": 3, "width": 8, "time": 16, **changes}


def alone(settings):
    """Return the loss curve of one network in a plain training loop."""
    task = find_task(settings["data"])
    train = task.split("train", SIZE)
    variant, rate = find_variant(settings["scheme"]), settings["rate"]
    model = task.build(
        variant.scheme, settings["depth"], SIZE, torch.Generator().manual_seed(settings["seed"])
    )
    kinds = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
    groups = param_groups(model, None, settings["optimizer"], lr=rate) if variant.grouped else None
    optimizer = kinds[settings["optimizer"]](groups or model.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(1_000_003 + settings["seed"])
    losses = []
    for order in torch.randint(
        len(train.inputs), (settings["steps"], settings["batch"]), generator=generator
    ):
        loss = cross_entropy(model(train.inputs[order]), train.targets[order])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("data", TASKS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_networks_trained_together_train_as_each_does_alone(data, optimizer):
    bundle = [
        cell(data=data, optimizer=optimizer, rate=rate, seed=seed) for rate in (1e-3, 3e-2) for seed in (0, 1)
    ]
    for settings, result in zip(bundle, train_bundle(bundle), strict=True):
        assert result["curve"] == pytest.approx(
            alone(settings), abs=2e-4
        )  # curves are stored with four digits


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_groups_give_every_parameter_the_rate_of_its_group(optimizer):
    settings = cell(scheme="keel+groups", optimizer=optimizer, depth=4, rate=3e-2)
    (result,) = train_bundle([settings])
    assert result["curve"] == pytest.approx(alone(settings), abs=2e-4)
    (other,) = train_bundle([cell(scheme="keel", optimizer=optimizer, depth=4, rate=3e-2)])
    assert other["curve"] != pytest.approx(alone(settings), abs=2e-4)


def test_groups_of_a_scheme_without_a_depth_law_are_refused():
    with pytest.raises(InputError, match=r"keel, fixup\n +got pre\+groups"):
        find_variant("pre+groups")


def test_every_variant_is_known_and_listed_once():
    assert all(find_variant(name) for name in all_variants())
    assert len(set(all_variants())) == len(all_variants())


def test_a_network_with_another_rate_has_another_curve():
    """Show that the comparison above can fail."""
    (result,) = train_bundle([cell(rate=1.2e-2)])
    assert result["curve"] != pytest.approx(alone(cell()), abs=2e-4)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_of_the_stacked_optimizer_equals_torchs(optimizer):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    kinds = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
    mine, rates = start.clone(), torch.tensor([0.1, 0.3], dtype=torch.float64)
    theirs = [each.clone().requires_grad_() for each in start]
    stacked = StackedOptimizer(optimizer, [mine], rates)
    optimizers = [
        kinds[optimizer]([each], lr=rate) for each, rate in zip(theirs, rates.tolist(), strict=True)
    ]
    for _ in range(5):
        gradient = torch.randn(2, 3, generator=generator, dtype=torch.float64)
        stacked.step([gradient.clone()])
        for each, part, optim in zip(theirs, gradient, optimizers, strict=True):
            each.grad = part.clone()
            optim.step()
    torch.testing.assert_close(mine, torch.stack([each.detach() for each in theirs]))


def test_the_splits_of_the_data_have_no_sample_in_common():
    for task in TASKS.values():
        splits = [task.split(name, SIZE) for name in ("train", "valid", "held-out")]
        assert all(len(part.inputs) == len(part.targets) > 90 for part in splits)
        storages = [part.inputs.untyped_storage().data_ptr() for part in splits]
        if len(set(storages)) == 1:  # windows of one line: a split ends before the next one starts
            ends = [part.inputs[-1].data_ptr() for part in splits]
            starts = [part.inputs[0].data_ptr() for part in splits]
            assert starts[0] < ends[0] < starts[1] < ends[1] < starts[2]


def test_a_constant_prediction_has_the_entropy_of_the_classes_as_its_loss():
    assert base_rate("images") == pytest.approx(2.3026, abs=0.01)  # ten classes, about equally many


@pytest.mark.parametrize(("field", "value"), [("data", "novels"), ("optimizer", "magic"), ("depths", ())])
def test_a_grid_with_an_unknown_or_empty_choice_is_refused(field: str, value: object):
    with pytest.raises(InputError, match=field):
        Grid(**{"data": "text", "schemes": ("pre",), "depths": (1,), "rates": (0.1,), field: value})
