"""Programs with unusual parameters and buffers."""

from __future__ import annotations

import warnings

import numpy
import torch
from torch import Tensor, nn

from leadline import Case
from tests.support.faults.unusual_parts import (
    Around,
    batch,
    case,
    mlp,
    program,
    replace_optimizer,
)

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
