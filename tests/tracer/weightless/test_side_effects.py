"""Building a model without weights leaves generators, defaults, PyTorch and the user's classes unchanged."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from leadline import InputError
from leadline.tracer.weightless.build import build_without_weights, trace_without_weights
from leadline.tracer.weightless.context import FakeTensorContext
from tests.support.zoo import ZOO, animals


def noisy():
    torch.manual_seed(3)
    torch.set_default_dtype(torch.float64)
    nn.init.trunc_normal_(torch.empty(9, 9))
    return nn.Linear(4, 4)


def failing():
    noisy()
    raise KeyError("the user's own")


def test_generators_defaults_and_pytorch_itself_are_untouched():
    generator = torch.Generator().manual_seed(1)
    before = torch.get_rng_state(), generator.get_state()
    original = nn.init._no_grad_trunc_normal_
    build_without_weights(lambda: (noisy(), torch.empty(5).normal_(generator=generator)))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(generator.get_state(), before[1])
    assert torch.get_default_dtype() is torch.float32
    assert nn.init._no_grad_trunc_normal_ is original


def test_an_error_of_the_constructor_is_raised_and_everything_is_restored():
    original = nn.init._no_grad_trunc_normal_
    with pytest.raises(KeyError, match="the user's own"):
        build_without_weights(failing)
    assert nn.init._no_grad_trunc_normal_ is original
    assert torch.get_default_dtype() is torch.float32


def test_afterwards_the_same_class_draws_real_numbers():
    build_without_weights(lambda: nn.Linear(30, 30))
    weight = nn.Linear(30, 30).weight
    assert not isinstance(weight, FakeTensor)
    assert weight.std() > 0


def test_real_tensors_of_the_user_are_not_changed():
    table = torch.ones(3)
    build_without_weights(lambda: nn.Parameter(table.mul_(2)))
    assert table.tolist() == [1, 1, 1]


def test_another_thread_still_draws_real_numbers():
    found = []

    def build():
        worker = threading.Thread(target=lambda: found.append(nn.init.trunc_normal_(torch.empty(50))))
        worker.start()
        worker.join()
        return nn.Linear(2, 2)

    build_without_weights(build)
    assert not isinstance(found[0], FakeTensor)
    assert found[0].std() > 0


def test_a_constructor_that_reads_a_random_tensor_is_refused_with_the_place():
    with pytest.raises(InputError, match=r"test_side_effects\.py:\d+"):
        build_without_weights(lambda: nn.Linear(3, 4 if torch.randn(3).sum() > 0 else 5))


def test_a_constructor_may_read_a_small_constant_table():
    rates = build_without_weights(lambda: [rate.item() for rate in torch.linspace(0, 0.5, 3)]).result
    assert rates == [0, 0.25, 0.5]


REFUSED = {"scripted-submodule", "vmap-in-forward", "conv-batch-norm", "gru-packed", "routed-experts"}
REFUSED |= {"foreign-functions", "potpourri", "subclass-input", "odd-parts"}
if torch.__version__ < "2.7":  # it knows no shapes of Fourier transforms
    REFUSED |= {"complex-fourier"}


@pytest.mark.parametrize("specimen", [each for each in animals(without=["deep"]) if each.id not in REFUSED])
def test_a_model_without_weights_has_the_ops_and_shapes_of_the_real_one(specimen):
    from leadline.tracer.trace import trace

    case = specimen()
    real = trace(case.model, case.inputs, case.targets, case.loss)
    built = build_without_weights(specimen)
    found = trace_without_weights(built, built.result)
    assert [op.name for op in found.ops] == [op.name for op in real.ops]
    assert [value.shape for value in found.values] == [value.shape for value in real.values]
    assert [(each.name, each.shape, each.kind) for each in found.parameters] == [
        (each.name, each.shape, each.kind) for each in real.parameters
    ]


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", ["gru-packed", "routed-experts", "foreign-functions", "scripted-submodule"])
def test_a_model_that_needs_values_is_refused_with_a_message(name):
    def run():
        built = build_without_weights(ZOO[name])
        trace_without_weights(built, built.result)

    with pytest.raises(InputError, match="without weights"):
        run()


OPS = {
    "product": lambda x, w: x @ w,
    "broadcast sum": lambda x, w: x + w[0],
    "half": lambda x, w: (x.half() * w.half()[0]).float(),
    "softmax": lambda x, w: x.softmax(-1),
    "split": lambda x, w: x.split(2, dim=1)[0],
    "moved": lambda x, w: x.unsqueeze(1).expand(-1, 3, -1).transpose(0, 1).reshape(-1),
    "joined": lambda x, w: torch.cat([x, x], 1),
    "compared": lambda x, w: x > 0,
    "norm": lambda x, w: nn.functional.layer_norm(x, x.shape[-1:]),
    "convolution": lambda x, w: nn.functional.conv1d(x[None], torch.ones(4, 8, 3), stride=2),
    "reduced": lambda x, w: torch.var_mean(x, dim=1, keepdim=True)[0],
    "empty channels last": lambda x, w: torch.empty(2, 3, 4, 5, memory_format=torch.channels_last),
}


@pytest.mark.parametrize("name", OPS)
def test_cached_shapes_equal_those_of_pytorch(name):
    """The second of the two calls is answered from the cache."""
    with FakeTensorMode():
        expected = outline(OPS[name](torch.empty(8, 6), torch.empty(6, 6)))
    context = FakeTensorContext()
    with context.active(follow_distributions=True):
        found = [outline(OPS[name](torch.empty(8, 6), torch.empty(6, 6))) for _ in range(2)]
    assert found == [expected, expected]


def outline(tensor):
    return type(tensor), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device
