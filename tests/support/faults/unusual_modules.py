"""Programs with modules that torch wraps, and with unusual inputs and outputs."""

from __future__ import annotations

import warnings
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from leadline import Case
from tests.support.faults.unusual_parts import (
    Around,
    batch,
    case,
    mean_square,
    mlp,
    program,
)

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


class Remembers(nn.Module):
    """Goes on from the hidden state of the last pass, as training on long sequences in pieces does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.LSTM(6, 8), nn.Linear(8, 3)
        self.state: tuple[Tensor, ...] | None = None

    def forward(self, x: Tensor) -> Tensor:
        before = None if self.state is None else tuple(each.detach() for each in self.state)
        hidden, self.state = self.layer(x, before)
        return self.last(hidden)


@program
def hidden_state_of_the_last_pass() -> Case:
    model = Remembers()
    model(batch())
    return case(model)


class KeepsLosses(nn.Module):
    """Keeps every loss, with its graph."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[Tensor] = []

    def forward(self, output: Tensor) -> Tensor:
        self.losses.append(mean_square(output))
        return self.losses[-1]


@program
def loss_that_keeps_losses() -> Case:
    loss = KeepsLosses()
    loss(mlp()(batch()))
    return case(mlp(), loss=loss)
