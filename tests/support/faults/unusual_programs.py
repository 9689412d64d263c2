"""Small programs that train in plain PyTorch and are unusual in one respect, for tests of every public function."""

from __future__ import annotations

import threading
import warnings
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import parametrizations, prune

from leadline import Case
from leadline.tracer.inputs import call_model, find_loss

Program = Callable[[], Case]
PROGRAMS: dict[str, Program] = {}
"""By name: a function that builds the model, its batch, its loss and its optimizer."""


def program(build: Program) -> Program:
    PROGRAMS[build.__name__] = build
    return build


def mean_square(output: Tensor, targets: Tensor | None = None) -> Tensor:
    output = output if targets is None else output - targets
    return (output.abs() if output.is_complex() else output).square().mean()


def batch() -> Tensor:
    return torch.randn(8, 6)


def mlp(*middle: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), *middle, nn.Linear(8, 3))


def case(model: nn.Module, inputs: Any = None, loss: Any = mean_square, targets: Any = None) -> Case:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return Case(model, batch() if inputs is None else inputs, targets, loss, optimizer)


class Around(nn.Module):
    """A perceptron with something done to its hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def hidden(self, x: Tensor) -> Tensor:
        return torch.relu(x)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.hidden(self.first(x)))


# Parameters and buffers.


@program
def batch_norm_without_momentum() -> Case:
    return case(mlp(nn.BatchNorm1d(8, momentum=None)))


@program
def batch_norm_without_statistics() -> Case:
    return case(mlp(nn.BatchNorm1d(8, track_running_stats=False)))


@program
def integer_parameter() -> Case:
    model = Around()
    model.order = nn.Parameter(torch.arange(8), requires_grad=False)
    model.hidden = lambda x: x[:, model.order].relu()
    return case(model)


@program
def boolean_parameter() -> Case:
    model = Around()
    model.mask = nn.Parameter(torch.arange(8) > 3, requires_grad=False)
    model.hidden = lambda x: x.relu() * model.mask
    return case(model)


@program
def expanded_parameter() -> Case:
    model = Around()
    model.scale = nn.Parameter(torch.ones(1).expand(8), requires_grad=False)
    model.hidden = lambda x: x.relu() * model.scale
    return case(model)


@program
def expanded_trainable_parameter() -> Case:
    model = Around()
    model.scale = nn.Parameter(torch.ones(1).expand(8))
    model.hidden = lambda x: x.relu() * model.scale
    others = [each for each in model.parameters() if each is not model.scale]
    return replace_optimizer(case(model), torch.optim.SGD(others, lr=0.01))


@program
def expanded_buffer() -> Case:
    model = Around()
    model.register_buffer("scale", torch.ones(1).expand(8))
    model.hidden = lambda x: x.relu() * model.scale
    return case(model)


@program
def resized_buffer() -> Case:
    model = Around()
    model.register_buffer("seen", torch.zeros(0))

    def hidden(x: Tensor) -> Tensor:
        model.seen.resize_(model.seen.numel() + 1).fill_(1.0)
        return x.relu() * model.seen.mean()

    model.hidden = hidden
    return case(model)


@program
def shrunk_buffer() -> Case:
    model = Around()
    model.register_buffer("seen", torch.ones(64, 64))

    def hidden(x: Tensor) -> Tensor:
        model.seen.resize_(max(model.seen.shape[0] // 2, 1), 64)
        return x.relu() * model.seen.mean()

    model.hidden = hidden
    return case(model)


@program
def buffer_of_numpy_that_is_resized() -> Case:
    model = Around()
    model.register_buffer("seen", torch.from_numpy(numpy.ones(8, dtype=numpy.float32)))

    def hidden(x: Tensor) -> Tensor:
        model.seen = model.seen[: max(len(model.seen) // 2, 1)]
        return x.relu() * model.seen.mean()

    model.hidden = hidden
    return case(model)


@program
def buffer_with_other_storage() -> Case:
    model = Around()
    model.register_buffer("seen", torch.ones(4))

    def hidden(x: Tensor) -> Tensor:
        model.seen.set_(torch.ones(model.seen.numel() + 3))
        return x.relu() * model.seen.mean()

    model.hidden = hidden
    return case(model)


@program
def buffer_that_is_a_view() -> Case:
    model = Around()
    model.register_buffer("all", torch.zeros(16))
    model.register_buffer("part", model.all[:8])

    def hidden(x: Tensor) -> Tensor:
        model.all += 1
        return x.relu() + model.part

    model.hidden = hidden
    return case(model)


@program
def grown_buffer() -> Case:
    model = Around()
    model.register_buffer("seen", torch.zeros(0, 8))

    def hidden(x: Tensor) -> Tensor:
        model.seen = torch.cat((model.seen, x.detach()[:1]))
        return x.relu() + model.seen.mean(0)

    model.hidden = hidden
    return case(model)


@program
def buffer_with_a_graph() -> Case:
    model = Around()
    model.register_buffer("state", torch.zeros(8))

    def hidden(x: Tensor) -> Tensor:
        model.state = 0.5 * model.state.detach() + x.mean(0)
        return x.relu() + model.state

    model.hidden = hidden
    return case(model)


@program
def buffer_that_is_none() -> Case:
    model = Around()
    model.register_buffer("nothing", None)
    model.register_parameter("none", None)
    return case(model)


@program
def empty_parameter() -> Case:
    model = Around()
    model.nothing = nn.Parameter(torch.zeros(0, 8))
    model.hidden = lambda x: x.relu() + model.nothing.sum()
    return case(model)


@program
def scalar_parameter() -> Case:
    model = Around()
    model.scale = nn.Parameter(torch.tensor(1.0))
    model.hidden = lambda x: x.relu() * model.scale
    return case(model)


@program
def complex_parameters() -> Case:
    class Complex(Around):
        def __init__(self) -> None:
            super().__init__()
            self.rotation = nn.Parameter(torch.randn(8, 8, dtype=torch.complex64))

        def hidden(self, x: Tensor) -> Tensor:
            return (x.to(torch.complex64) @ self.rotation).abs()

    return case(Complex())


@program
def complex_all_the_way() -> Case:
    model = nn.Sequential(
        nn.Linear(6, 8, dtype=torch.complex64), nn.Tanh(), nn.Linear(8, 3, dtype=torch.complex64)
    )
    return case(model, torch.randn(8, 6, dtype=torch.complex64))


@program
def double_precision() -> Case:
    return case(mlp().double(), batch().double())


@program
def bfloat16() -> Case:
    return case(mlp().bfloat16(), batch().bfloat16())


@program
def half_with_tiny_gradients() -> Case:
    return case(mlp().half(), batch().half(), lambda y: (y.float().square().mean() * 1e-9).half() + y.mean())


@program
def half_with_tiny_gradients_and_adam() -> Case:
    made = case(mlp().half(), batch().half(), lambda y: 1e-5 * y.square().mean())
    return replace_optimizer(made, torch.optim.Adam(made.model.parameters(), lr=1e-3))


@program
def half_with_gradients_that_are_zero() -> Case:
    return case(mlp().half(), batch().half(), lambda y: 1e-12 * y.float().square().mean())


@program
def half_deep() -> Case:
    layers = [part for _ in range(12) for part in (nn.Linear(6, 6), nn.Tanh())]
    model = nn.Sequential(*layers)
    for each in model.parameters():
        each.data *= 0.05
    return case(model.half(), batch().half(), lambda y: y.square().mean())


@program
def half_with_vanishing_gradients() -> Case:
    return case(mlp().half(), batch().half(), lambda y: 1e-6 * y.square().mean())


@program
def mixed_dtypes() -> Case:
    model = Around()
    model.last.double()
    model.hidden = lambda x: x.relu().double()
    return case(model)


@program
def float8_parameter() -> Case:
    model = Around()
    model.scale = nn.Parameter(torch.ones(8).to(torch.float8_e4m3fn), requires_grad=False)
    model.hidden = lambda x: x.relu() * model.scale.float()
    return case(model)


@program
def tied_weights() -> Case:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    model[2].weight = model[0].weight
    return case(model)


@program
def transposed_tie() -> Case:
    model = Around()
    model.last = nn.Linear(8, 6, bias=False)
    model.last.weight = nn.Parameter(model.first.weight.data.t())
    return case(model)


@program
def parameters_that_overlap() -> Case:
    model = Around()
    flat = torch.randn(14)
    model.one, model.two = nn.Parameter(flat[:8]), nn.Parameter(flat[6:])
    model.hidden = lambda x: x.relu() * model.one * model.two
    return case(model)


@program
def parameter_in_a_list() -> Case:
    model = Around()
    model.scales = nn.ParameterList([nn.Parameter(torch.ones(8)) for _ in range(2)])
    model.hidden = lambda x: x.relu() * model.scales[0] * model.scales[1]
    return case(model)


@program
def sparse_embedding() -> Case:
    model = nn.Sequential(nn.Embedding(10, 6, sparse=True), nn.Flatten(), nn.Linear(24, 3))
    made = case(model, torch.randint(0, 10, (8, 4)))
    return replace_optimizer(made, torch.optim.SGD(model.parameters(), lr=0.01))


@program
def sparse_adam() -> Case:
    model = nn.Sequential(nn.Embedding(10, 6, sparse=True), nn.Flatten(), nn.Tanh())
    made = case(model, torch.randint(0, 10, (8, 4)))
    return replace_optimizer(made, torch.optim.SparseAdam(list(model[0].parameters()), lr=0.01))


@program
def embedding_bag_with_a_norm() -> Case:
    model = nn.Sequential(nn.EmbeddingBag(10, 6, max_norm=1.0), nn.Linear(6, 3))
    return case(model, torch.randint(0, 10, (8, 4)))


@program
def sparse_input() -> Case:
    model = Around()
    model.first.forward = lambda x: torch.sparse.mm(x, model.first.weight.t()) + model.first.bias
    return case(model, batch().relu().to_sparse())


@program
def sparse_buffer() -> Case:
    model = Around()
    model.register_buffer("graph", torch.eye(8).to_sparse())
    model.hidden = lambda x: torch.sparse.mm(model.graph, x).relu()
    return case(model)


@program
def sparse_csr_buffer() -> Case:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = Around()
        model.register_buffer("graph", torch.eye(8).to_sparse_csr())
    model.hidden = lambda x: (model.graph @ x).relu()
    return case(model)


# Modules that torch wraps.


@program
def pruned() -> Case:
    model = mlp()
    prune.l1_unstructured(model[0], "weight", amount=0.3)
    return case(model)


@program
def weight_norm() -> Case:
    model = mlp()
    parametrizations.weight_norm(model[0])
    return case(model)


@program
def old_weight_norm() -> Case:
    model = mlp()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.nn.utils.weight_norm(model[0])
    return case(model)


@program
def spectral_norm() -> Case:
    model = mlp()
    parametrizations.spectral_norm(model[0])
    return case(model)


@program
def old_spectral_norm() -> Case:
    model = mlp()
    torch.nn.utils.spectral_norm(model[0])
    return case(model)


@program
def orthogonal() -> Case:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    parametrizations.orthogonal(model[0])
    return case(model)


@program
def own_parametrization() -> Case:
    class Symmetric(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.triu() + x.triu(1).mT

    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    nn.utils.parametrize.register_parametrization(model[0], "weight", Symmetric())
    return case(model)


@program
def lazy() -> Case:
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(3))
    model(batch())
    return case(model)


@program
def quantization_aware() -> Case:
    from torch.ao.nn.qat import Linear
    from torch.ao.quantization import get_default_qat_qconfig

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = get_default_qat_qconfig("fbgemm")
        return case(nn.Sequential(Linear(6, 8, qconfig=config), nn.ReLU(), Linear(8, 3, qconfig=config)))


@program
def fake_quantized() -> Case:
    from torch.ao.quantization import FakeQuantize

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return case(mlp(FakeQuantize()))


@program
def dynamically_quantized_part() -> Case:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        part = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(6, 6)), {nn.Linear})
    return case(nn.Sequential(part, nn.Linear(6, 3)))


@program
def scripted() -> Case:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return case(torch.jit.script(mlp()))


@program
def scripted_part() -> Case:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return case(
            nn.Sequential(torch.jit.script(nn.Sequential(nn.Linear(6, 8), nn.ReLU())), nn.Linear(8, 3))
        )


@program
def jit_traced() -> Case:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return case(torch.jit.trace(mlp(), batch()))


@program
def symbolically_traced() -> Case:
    return case(torch.fx.symbolic_trace(mlp()))


@program
def compiled_part() -> Case:
    return case(nn.Sequential(torch.compile(nn.Linear(6, 8), backend="eager"), nn.ReLU(), nn.Linear(8, 3)))


@program
def data_parallel() -> Case:
    return case(nn.DataParallel(mlp()))


@program
def averaged() -> Case:
    model = Around()
    model.average = torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2))
    return case(model)


@program
def lstm() -> Case:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells, self.last = nn.LSTM(6, 8, num_layers=2, batch_first=True), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.cells(x)[0][:, -1])

    return case(Recurrent(), torch.randn(4, 5, 6))


@program
def packed_sequence() -> Case:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells, self.last = nn.GRU(6, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
            return self.last(self.cells(packed)[0].data)

    return case(Packed(), (torch.randn(5, 4, 6), torch.tensor([5, 3, 2, 4])))


# What the model is given and returns.


@program
def jagged_input() -> Case:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = [torch.randn(3, 6), torch.randn(5, 6)]
        jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    return case(mlp(), jagged, lambda y: y.values().square().mean())


@program
def jagged_inside() -> Case:
    def hidden(x: Tensor) -> Tensor:
        parts = torch.nested.as_nested_tensor([x[:3], x[3:]], layout=torch.jagged)
        return parts.relu().values()

    model = Around()
    model.hidden = hidden
    return case(model)


@program
def strided_nested_inside() -> Case:
    def hidden(x: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.nested.as_nested_tensor([x[:4], x[4:]]).relu().to_padded_tensor(0.0).flatten(0, 1)

    model = Around()
    model.hidden = hidden
    return case(model)


@program
def tensor_subclass_input() -> Case:
    class Image(Tensor):
        pass

    return case(mlp(), batch().as_subclass(Image))


@program
def tensor_subclass_parameter() -> Case:
    class Tagged(nn.Parameter):
        pass

    model = Around()
    model.scale = Tagged(torch.ones(8))
    model.hidden = lambda x: x.relu() * model.scale
    return case(model)


class Rounded(Tensor):
    """A tensor stored as 8-bit integers and a scale, which supports the ops of a linear layer and no other."""

    @staticmethod
    def __new__(cls, numbers: Tensor, scale: float) -> Rounded:
        return Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=torch.float32)  # type: ignore[attr-defined,no-any-return]

    def __init__(self, numbers: Tensor, scale: float) -> None:
        self.numbers, self.scale = numbers, scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("detach", "t", "clone", "alias"):
            return cls(func(args[0].numbers), args[0].scale)
        if name in ("mm", "addmm"):
            dense = [each.numbers * each.scale if isinstance(each, cls) else each for each in args]
            return func(*dense, **(kwargs or {}))
        raise NotImplementedError(f"{name} of rounded tensors")


@program
def subclass_that_refuses_most_ops() -> Case:
    class Own(Around):
        def __init__(self) -> None:
            super().__init__()
            weight = Rounded(torch.randint(-127, 127, (8, 8), dtype=torch.int8), 0.01)
            self.inner = nn.Linear(8, 8)
            self.inner.weight = nn.Parameter(weight, requires_grad=False)

        def hidden(self, x: Tensor) -> Tensor:
            return self.inner(x.relu())

    model = Own()
    trainable = [each for each in model.parameters() if each.requires_grad]
    return Case(model, batch(), None, mean_square, torch.optim.SGD(trainable, lr=0.01))


@program
def scalar_output() -> Case:
    class Own(Around):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).square().mean()

    return case(Own(), loss=None)


@program
def dict_output() -> Case:
    class Own(Around):
        def forward(self, x: Tensor) -> dict[str, Any]:
            return {"logits": super().forward(x), "step": 3, "none": None}

    return case(Own(), loss=lambda y: y["logits"].square().mean())


Pair = namedtuple("Pair", ["mean", "log_variance"])


@program
def named_tuple_output() -> Case:
    class Own(Around):
        def forward(self, x: Tensor) -> Pair:
            y = super().forward(x)
            return Pair(y[:, :1], y[:, 1:2])

    return case(Own(), loss=lambda y: (y.mean.square() * (-y.log_variance).exp() + y.log_variance).mean())


@dataclass
class Prediction:
    logits: Tensor
    aux: Tensor | None = None


@program
def dataclass_output() -> Case:
    class Own(Around):
        def forward(self, x: Tensor) -> Prediction:
            return Prediction(super().forward(x))

    return case(Own(), loss=lambda y: y.logits.square().mean())


@program
def object_output() -> Case:
    class Distribution(Around):
        def forward(self, x: Tensor) -> torch.distributions.Normal:
            y = super().forward(x)
            return torch.distributions.Normal(y[:, :1], y[:, 1:2].exp())

    return case(Distribution(), loss=lambda y: -y.log_prob(torch.zeros(8, 1)).mean())


@program
def dict_input() -> Case:
    class Own(Around):
        def forward(self, *, x: Tensor, flag: bool = False) -> Tensor:
            return super().forward(x)

    return case(Own(), {"x": batch(), "flag": True})


@program
def one_sample() -> Case:
    return case(mlp(), torch.randn(1, 6))


@program
def unbatched() -> Case:
    return case(mlp(), torch.randn(6))


@program
def some_experts_see_nothing() -> Case:
    model = Around()
    model.other = nn.Linear(8, 8)

    def hidden(x: Tensor) -> Tensor:
        out = x.relu()
        empty = torch.zeros(8, dtype=torch.bool)
        return out.index_add(0, empty.nonzero()[:, 0], model.other(x[empty]))

    model.hidden = hidden
    return case(model)


@program
def loss_of_shape_one() -> Case:
    return case(mlp(), loss=lambda y: y.square().mean().reshape(1))


@program
def integer_inputs_and_targets() -> Case:
    model = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 10))
    tokens = torch.randint(0, 10, (4, 5))
    return case(model, tokens, lambda y, t: nn.functional.cross_entropy(y.flatten(0, 1), t.flatten()), tokens)


@program
def targets_as_strings() -> Case:
    def loss(y: Tensor, words: list[str]) -> Tensor:
        return nn.functional.cross_entropy(y, torch.tensor([len(word) % 3 for word in words]))

    return case(mlp(), loss=loss, targets=["a", "bb", "ccc", "d", "ee", "f", "g", "h"])


# Programs with a graph of their own.


@program
def gradient_penalty() -> Case:
    model = mlp()

    def loss(output: Tensor) -> Tensor:
        x = torch.randn(8, 6, requires_grad=True)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return output.square().mean() + (slope.norm(dim=1) - 1).square().mean()

    return case(model, loss=loss)


@program
def gradient_penalty_at_the_batch() -> Case:
    x = batch().requires_grad_()

    def loss(output: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        return output.square().mean() + (slope.norm(dim=1) - 1).square().mean()

    return case(mlp(), x, loss)


@program
def gradient_penalty_at_the_inputs() -> Case:
    class Own(Around):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x = x.detach().requires_grad_()
            y = self.last(torch.tanh(self.first(x)))
            return y, torch.autograd.grad(y.sum(), x, create_graph=True)[0]

    return case(Own(), loss=lambda out: out[0].square().mean() + out[1].square().mean())


@program
def hypernetwork() -> Case:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.maker, self.task = nn.Linear(4, 18), nn.Parameter(torch.randn(4))

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.maker(self.task).view(3, 6))

    return case(Own())


@program
def functional_weights() -> Case:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.scale = mlp(), nn.Parameter(torch.tensor(1.0))

        def forward(self, x: Tensor) -> Tensor:
            weights = {name: each * self.scale for name, each in self.inner.named_parameters()}
            return functional_call(self.inner, weights, (x,))

    return case(Own())


@program
def ensemble_by_vmap() -> Case:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.Parameter(torch.randn(4, 3, 6))

        def forward(self, x: Tensor) -> Tensor:
            return vmap(lambda weight: nn.functional.linear(x, weight))(self.weights)

    return case(Own())


@program
def gradient_by_functorch() -> Case:
    model = Around()
    model.hidden = lambda x: vmap(grad(lambda row: row.square().sum()))(x).tanh()
    return case(model)


@program
def own_autograd_function() -> Case:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return 2 * gradient

    model = Around()
    model.hidden = lambda x: Double.apply(x).relu()
    return case(model)


@program
def checkpointed() -> Case:
    model = Around()
    model.hidden = partial(torch.utils.checkpoint.checkpoint, torch.relu, use_reentrant=False)
    return case(model)


@program
def inner_optimization() -> Case:
    class Own(Around):
        def hidden(self, x: Tensor) -> Tensor:
            fast = torch.zeros(8, requires_grad=True)
            for _ in range(2):
                (slope,) = torch.autograd.grad((x.detach() + fast).square().mean(), fast)
                fast = (fast - 0.1 * slope).detach().requires_grad_()
            return x.relu() + fast.detach()

    return case(Own())


@program
def own_generator_of_numbers() -> Case:
    model = Around()

    def numbers() -> Iterator[float]:
        value = 1.0
        while True:
            yield value
            value *= 0.999

    model.numbers = numbers()
    model.hidden = lambda x: x.relu() * next(model.numbers)
    return case(model)


@program
def iterator_that_ends() -> Case:
    model = Around()
    model.factors = iter([1.0] * 5)
    model.hidden = lambda x: x.relu() * next(model.factors)
    return case(model)


@program
def iterator_over_a_short_list() -> Case:
    model = Around()
    model.factors = iter([1.0] * 40)

    def hidden(x: Tensor) -> Tensor:
        factor = next(model.factors, None)
        if factor is None:
            model.factors = iter([1.0] * 40)
            factor = 1.0
        return x.relu() * factor

    model.hidden = hidden
    return case(model)


@program
def many_outputs() -> Case:
    model = Around()
    model.hidden = lambda x: torch.stack([column.relu() for column in x.unbind(1)], 1)
    return case(model)


@program
def convolutions() -> Case:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )
    return case(model.to(memory_format=torch.channels_last), torch.randn(4, 3, 8, 8))


@program
def einsum_attention() -> Case:
    model = Around()
    model.hidden = lambda x: torch.einsum("ij,jk->ik", torch.softmax(x @ x.mT, -1), x)
    return case(model)


@program
def fourier() -> Case:
    model = Around()
    model.hidden = lambda x: torch.fft.irfft(torch.fft.rfft(x), n=8).relu()
    return case(model)


@program
def reads_its_numbers() -> Case:
    model = Around()
    model.hidden = lambda x: x.relu() * (1.0 + float(x.detach().mean()) * 0.0)
    return case(model)


@program
def frozen() -> Case:
    model = mlp()
    model[0].requires_grad_(requires_grad=False)
    return case(model)


@program
def in_eval_mode() -> Case:
    return case(mlp(nn.BatchNorm1d(8), nn.Dropout()).eval())


@program
def method_as_forward() -> Case:
    model = mlp()
    model.forward = lambda x: nn.Sequential.forward(model, x) * 1.0
    return case(model)


@program
def module_without_parameters_first() -> Case:
    return case(nn.Sequential(nn.Identity(), nn.Flatten(), mlp()))


@program
def recursive_reference() -> Case:
    model = Around()
    model.__dict__["me"] = model
    return case(model)


@program
def cannot_be_copied() -> Case:
    model = Around()
    model.lock = threading.Lock()
    return case(model)


@program
def slots_and_properties() -> Case:
    class Own(Around):
        @property
        def secret(self) -> Tensor:
            raise RuntimeError("only in distributed runs")

        def __getattr__(self, name: str) -> Any:
            return super().__getattr__(name)

    return case(Own())


@program
def module_with_len_zero() -> Case:
    class Own(Around):
        def __len__(self) -> int:
            return 0

    return case(Own())


# Optimizers.


def replace_optimizer(made: Case, optimizer: Any) -> Case:
    return Case(made.model, made.inputs, made.targets, made.loss, optimizer)


def _with(make: Callable[[Any], torch.optim.Optimizer]) -> Case:
    model = mlp()
    return Case(model, batch(), None, mean_square, make(model.parameters()))


@program
def lbfgs() -> Case:
    return _with(torch.optim.LBFGS)


@program
def rprop() -> Case:
    return _with(torch.optim.Rprop)


@program
def capturable_rate() -> Case:
    return _with(lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.01)))


@program
def averaging_optimizer() -> Case:
    return _with(torch.optim.ASGD)


@program
def adafactor() -> Case:
    return _with(torch.optim.Adafactor)


@program
def own_optimizer() -> Case:
    class Plain(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter -= 0.01 * parameter.grad

    return _with(Plain)


@program
def optimizer_that_scales_by_itself() -> Case:
    class Strange(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            self.state["count"] = self.state.get("count", 0) + 1
            return super().step(closure)

    return _with(lambda parameters: Strange(parameters, lr=0.01))


@program
def optimizer_of_a_part() -> Case:
    model = mlp()
    return Case(model, batch(), None, mean_square, torch.optim.SGD(model[2].parameters(), lr=0.01))


@program
def two_optimizers() -> Case:
    model = mlp()
    first, last = torch.optim.SGD(model[0].parameters(), lr=0.01), torch.optim.Adam(model[2].parameters())
    return Case(model, batch(), None, mean_square, [first, last])


@program
def maximizing() -> Case:
    model = mlp()
    made = torch.optim.SGD(model.parameters(), lr=0.01, maximize=True)
    return Case(model, batch(), None, lambda y: -mean_square(y), made)


@program
def empty_group() -> Case:
    model = mlp()
    made = torch.optim.SGD([{"params": []}, {"params": model.parameters()}], lr=0.01)
    return Case(model, batch(), None, mean_square, made)


@program
def rate_zero() -> Case:
    model = mlp()
    return Case(model, batch(), None, mean_square, torch.optim.SGD(model.parameters(), lr=0.0))


def train(made: Case, seen: Callable[[Tensor], Tensor] = lambda loss: loss) -> None:
    """Make three steps as plain PyTorch does; `seen` is shown each loss."""

    def closure() -> Tensor:
        for each in made.optimizers:
            each.zero_grad()
        loss = seen(find_loss(call_model(made.model, made.inputs), made.loss, made.targets))
        loss.backward()
        return loss

    for _ in range(3):
        if any(isinstance(each, torch.optim.LBFGS) for each in made.optimizers):
            made.optimizers[0].step(closure)
            continue
        closure()
        for each in made.optimizers:
            each.step()


def build(name: str) -> Case:
    torch.manual_seed(0)
    return PROGRAMS[name]()
