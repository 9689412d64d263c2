"""A fleet trains each of its networks as if it were alone."""

import pytest
import torch

from leadline.errors import InputError
from leadline.lab.fleet import Net, Task, build_alone, train_alone, train_fleet
from leadline.lab.fleet.plan import ACTIVATIONS
from leadline.lab.fleet.training import flush_denormals, run_on_threads, split_into_chunks

EXACT = {"rtol": 1e-9, "atol": 1e-12}  # float64, a few steps: only the order of additions differs


@pytest.fixture
def task():
    generator = torch.Generator().manual_seed(0)
    return Task(
        inputs=torch.randn(40, 6, generator=generator, dtype=torch.float64),
        targets=torch.randint(3, (40,), generator=generator),
        batches=torch.randint(40, (5, 8), generator=generator),
        width=10,
    )


def mixed(activation, *, skip):
    """Return networks that differ in every setting that may differ within a fleet."""
    return [
        Net(
            depth=1 + (3 * i) % 5,
            gain=0.5 + 0.3 * i,
            bias=0.05 * i,
            rate=0.05 * (i + 1),
            skip=skip,
            scale=1 / (i + 1) if skip else 1.0,
            activation=activation,
            seed=i,
        )
        for i in range(6)
    ]


@pytest.mark.parametrize("skip", [0.0, 1.0])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_fleet_trains_each_network_as_if_it_were_alone(task, activation, skip):
    nets = mixed(activation, skip=skip)
    torch.testing.assert_close(train_fleet(nets, task).losses, train_alone(nets, task), **EXACT)


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_the_chunk_size_does_not_change_the_result(task, size):
    nets = [*mixed("tanh", skip=0.0), *mixed("relu", skip=1.0)]
    torch.testing.assert_close(
        train_fleet(nets, task, chunk=size).losses, train_fleet(nets, task).losses, **EXACT
    )


def test_threads_do_not_change_the_result_and_their_number_is_restored(task):
    nets = mixed("tanh", skip=0.0) * 2
    alone, before = train_fleet(nets, task, chunk=1).losses, torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        threaded = train_fleet(nets, task, chunk=1).losses
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(threaded, alone, **EXACT)


def test_an_error_in_a_thread_is_raised(task):
    pieces = [lambda: 1 / 0] * 8
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with pytest.raises(ZeroDivisionError):
            list(run_on_threads(pieces))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_accuracy_is_measured_on_the_trained_networks(task):
    nets = [Net(depth=d, rate=0.5, gain=1.5, seed=d) for d in (2, 1, 3)]
    accuracies = train_fleet(nets, task).accuracy
    for net, share in zip(nets, accuracies, strict=True):
        model = build_alone(net, task)
        optimizer = torch.optim.SGD(model.parameters(), lr=net.rate)
        for batch in task.batches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(task.inputs[batch]), task.targets[batch]).backward()
            optimizer.step()
        assert share == (model(task.inputs).argmax(1) == task.targets).double().mean()


def test_a_network_with_another_rate_has_other_losses(task):
    """Show that the comparison of the first test can fail."""
    nets = mixed("tanh", skip=0.0)
    other = [
        Net(depth=net.depth, gain=net.gain, bias=net.bias, rate=1.01 * net.rate, seed=net.seed)
        for net in nets
    ]
    assert not torch.allclose(train_fleet(other, task).losses, train_alone(nets, task), **EXACT)


def test_chunks_contain_every_network_once_deepest_first():
    nets = [*mixed("tanh", skip=0.0), *mixed("relu", skip=0.0), *mixed("relu", skip=1.0)]
    chunks = list(split_into_chunks(nets, 4))
    assert sorted(index for chunk in chunks for index in chunk) == list(range(len(nets)))
    for chunk in chunks:
        depths = [nets[index].depth for index in chunk]
        assert depths == sorted(depths, reverse=True)
        assert len({(nets[index].activation, nets[index].skip) for index in chunk}) == 1


def test_a_diverging_network_does_not_affect_the_others(task):
    nets = [Net(depth=2, rate=0.1), Net(depth=3, gain=1e200, rate=1e200, seed=1)]
    result = train_fleet(nets, task)
    torch.testing.assert_close(result.losses[:1], train_alone(nets[:1], task), **EXACT)
    assert not result.losses[1].isfinite().all()


@pytest.mark.parametrize(
    "bad", [{"depth": 0}, {"depth": 2, "gain": -1.0}, {"depth": 2, "activation": "maxout"}]
)
def test_an_invalid_network_is_refused(bad):
    with pytest.raises(InputError, match="expected"):
        Net(**bad)


def test_the_denormal_mode_is_restored():
    small = torch.tensor(1e-310, dtype=torch.float64)
    with flush_denormals():
        assert small * 1.0 == 0
    assert small * 1.0 > 0
