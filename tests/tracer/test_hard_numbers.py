"""Hard cases of numbers: extremes, odd dtypes and layouts, missing values, empty batches, very deep models."""

from __future__ import annotations

import math
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import leadline
from benchmarks.footprint import differences, footprint
from leadline import Case
from tests.support.traces import gaps_about, ops_in, output_of, parameter, trace, trace_of
from tests.support.zoo import ZOO, Specimen, animals, energy
from tests.support.zoo.plain import WIDTH, batch


class Scale(nn.Module):
    """Multiplies by a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def identity_layer() -> nn.Linear:
    layer = nn.Linear(WIDTH, WIDTH, bias=False)
    nn.init.eye_(layer.weight)
    return layer


def scaled(*factors: float, dtype: torch.dtype = torch.float32) -> Case:
    """An identity layer, then multiplications; the gradients run through the same factors."""
    model = nn.Sequential(identity_layer(), *map(Scale, factors)).to(dtype)
    return Case(model, torch.ones(4, WIDTH, dtype=dtype), loss=lambda out: out.float().mean())


def test_squares_of_half_precision_activations_do_not_overflow():  # row 30
    found = output_of(trace(scaled(6e4, dtype=torch.float16)), "1")
    assert found.dtype == "float16"
    assert found.forward.ms == pytest.approx(torch.tensor(6e4).half().item() ** 2, rel=1e-5)


def test_squares_of_tiny_half_precision_gradients_do_not_vanish():  # row 30
    found = trace(scaled(1e-4, dtype=torch.float16))
    gradient = output_of(found, "0").backward
    assert 0 < gradient.abs_max < 1e-4
    assert gradient.ms == pytest.approx(gradient.abs_max**2, rel=1e-5)


@pytest.mark.parametrize("factor", [1e25, 1e-25])
def test_second_moments_of_extreme_activations_and_gradients_are_finite_and_positive(factor: float):  # row 31
    found = trace(scaled(factor))
    assert output_of(found, "1").forward.ms == pytest.approx(factor**2, rel=1e-4)
    expected = (factor / (4 * WIDTH)) ** 2
    assert output_of(found, "0").backward.ms == pytest.approx(expected, rel=1e-4)
    weight = parameter(found, "0.weight")
    assert weight.grad_ms == pytest.approx(16 * expected, rel=1e-4)
    assert math.isfinite(weight.grad_dot_weight)


def test_a_sparse_gradient_has_the_norm_of_the_dense_one():  # row 44
    case = ZOO["sparse-embedding"]()
    dense = ZOO["sparse-embedding"]()
    dense.model[0].sparse = False
    found, expected = (parameter(trace(each), "0.weight") for each in (case, dense))
    for field in ("grad_norm", "grad_ms", "grad_dot_weight"):
        assert getattr(found, field) == pytest.approx(getattr(expected, field), rel=1e-5)
    assert found.kind == "embedding"


def test_complex_values_are_measured_by_their_magnitude():  # row 45
    case = ZOO["complex-fourier"]()
    spectrum = torch.fft.rfft(case.inputs)
    found = trace(case)
    (transform,) = [op for op in found.ops if op.callable.endswith("_rfft") or op.callable.endswith(".rfft")]
    value = found.values[transform.outputs[0]]
    assert value.dtype == "complex64"
    assert value.forward.ms == pytest.approx(spectrum.abs().square().mean().item(), rel=1e-5)
    assert parameter(found, "filter").grad_norm > 0


class Strange(nn.Module):
    """Passes its signal through numbers of an odd kind and back."""

    def __init__(self, there: object, back: object) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.there, self.back = there, back

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.back(self.there(self.before(x))) + x)


DETOURS = {
    "float8": (lambda x: x.to(torch.float8_e4m3fn), lambda x: x.float()),
    "bool": (lambda x: x > 0, lambda x: x.float()),
    "integers": (lambda x: x.round().to(torch.int8), lambda x: x.float()),
    "csr": (lambda x: x.detach().to_sparse_csr(), lambda x: x.to_dense()),
    "coo": (lambda x: x.to_sparse(), lambda x: x.to_dense()),
    "jagged": (
        lambda x: torch.nested.nested_tensor_from_jagged(x, torch.tensor([0, 2, 6])),
        lambda x: x.values(),
    ),
    "nested": (
        lambda x: torch.nested.as_nested_tensor([x[:2], x[2:]]),
        lambda x: x.to_padded_tensor(0.0).flatten(0, 1)[:6],
    ),
    "quantized": (
        lambda x: torch.quantize_per_tensor(x.detach(), 0.1, 0, torch.qint8),
        lambda x: x.dequantize(),
    ),
}


@pytest.mark.filterwarnings(
    "ignore:Sparse CSR tensor support is in beta:UserWarning",
    "ignore:The PyTorch API of nested tensors:UserWarning",
    "ignore:torch.quantize_per_tensor:UserWarning",
    "ignore:Sparse invariant checks:UserWarning",
)
@pytest.mark.parametrize("detour", DETOURS)
def test_numbers_of_an_odd_kind_are_measured_or_listed_and_break_nothing(detour: str):  # rows 46, 47
    torch.manual_seed(0)
    case = Case(Strange(*DETOURS[detour]), batch(), loss=energy)
    before = footprint(case)
    found = trace(case)
    assert differences(before, footprint(case)) == []
    assert output_of(found, "after").backward.ms > 0
    silent = [
        v.id
        for v in found.values
        if v.floating and v.op is not None and v.forward is None and not v.unobserved
    ]
    assert silent == []


class Empties(nn.Module):
    """Lets no sample through: what comes out has no elements."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:0]


def test_a_tensor_without_elements_inside_the_model_gives_a_trace_without_moments():  # row 48
    model = nn.Sequential(Empties(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))
    found = trace(Case(model, torch.ones(2, WIDTH), loss=torch.sum))
    assert output_of(found, "1").forward.count == 0
    assert math.isnan(output_of(found, "2").forward.ms)
    assert parameter(found, "1.weight").grad_norm == 0


def test_the_mean_of_no_elements_gives_nan_and_no_error():  # row 48
    model = nn.Sequential(Empties(), nn.Linear(WIDTH, 2))
    assert math.isnan(trace(Case(model, torch.ones(2, WIDTH), loss=energy)).loss)


def test_a_batch_of_one_number_is_traced():  # row 48
    found = trace(Case(nn.Linear(1, 1), torch.ones(1, 1), loss=energy))
    assert output_of(found, "").forward.count == 1


def test_nan_in_the_input_is_counted_at_the_input_and_at_every_layer_after_it():  # row 49
    found = trace(ZOO["nan-in-input"]())
    (source,) = [value for value in found.values if value.source == "input"]
    assert source.forward.non_finite == 1
    assert output_of(found, "0").forward.non_finite == WIDTH
    assert math.isnan(found.loss)
    assert math.isnan(leadline.Trace.from_json(found.to_json()).loss)


def test_more_layers_than_the_recursion_limit_are_traced_within_it_and_stay_small():  # row 58
    limit = sys.getrecursionlimit()
    found = trace_of(ZOO["deeper-than-the-stack"])
    assert sys.getrecursionlimit() == limit
    assert sum(op.name == "linear" for op in found.ops) == 1100
    assert output_of(found, "0").backward.ms > 0
    assert len(found.to_json()) < 5e6


class Wrapper(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def test_wrappers_nested_as_deep_as_plain_pytorch_can_run_are_traced():  # row 58
    model: nn.Module = nn.Linear(WIDTH, WIDTH)
    for _ in range(220):
        model = Wrapper(model)
    case = Case(model, batch(), loss=energy)
    energy(model(case.inputs)).backward()
    found = trace(case)
    assert found.ops[0].module == ".".join(["inner"] * 220)


@pytest.mark.parametrize(
    "animal", animals("mlp", "conv-batch-norm", "encoder-pre-norm", "in-place", "shared-module")
)
def test_a_model_on_the_meta_device_has_the_structure_of_the_real_one_and_no_numbers(
    animal: Specimen,
):  # row 59
    real, case = animal(), animal()
    found = trace(to_meta(case))
    expected = trace(real)
    assert [op.name for op in found.ops] == [op.name for op in expected.ops]
    assert [value.shape for value in found.values] == [value.shape for value in expected.values]
    assert all(value.forward is None and value.backward is None for value in found.values)
    assert found.loss is None
    assert gaps_about(found, "meta")


def to_meta(case: Case) -> Case:
    def move(tree: object) -> object:
        return torch.utils._pytree.tree_map(lambda x: x.to("meta") if isinstance(x, Tensor) else x, tree)

    return Case(case.model.to("meta"), move(case.inputs), move(case.targets), case.loss)


def test_a_fake_model_is_traced_by_its_shapes():  # row 23
    with FakeTensorMode():
        found = trace(
            Case(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()), torch.randn(3, WIDTH), loss=energy)
        )
    assert [op.name for op in found.ops][:2] == ["linear", "tanh"]
    assert found.values[found.ops[0].outputs[0]].forward is None
    assert found.gaps


def test_what_happens_inside_a_function_transform_is_listed():  # row 60
    found = trace(ZOO["vmap-in-forward"]())
    assert parameter(found, "layer.weight").grad_norm > 0
    assert output_of(found, "head").backward.ms > 0
    assert gaps_about(found, "transform")


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_a_scripted_module_is_one_opaque_op_with_statistics_at_its_output():  # row 61
    found = trace(ZOO["scripted-submodule"]())
    (opaque,) = ops_in(found, "1")
    value = found.values[opaque.outputs[0]]
    assert opaque.inputs[0] == ops_in(found, "0")[0].outputs[0]
    assert value.forward.ms > 0
    assert value.backward.ms > 0
    assert opaque.kind is None


@pytest.mark.parametrize("animal", animals("bfloat16", "float16", "autocast"))
def test_half_precision_models_have_finite_statistics_everywhere(animal: Specimen):  # rows 29, 30
    found = trace(animal())
    dtypes = {value.dtype for value in found.values}
    assert dtypes & {"bfloat16", "float16"}
    measured = [s for value in found.values for s in (value.forward, value.backward) if s is not None]
    assert all(s.non_finite == 0 and math.isfinite(s.ms) for s in measured)


def test_a_custom_function_is_seen_from_outside():  # custom autograd.Function
    case = ZOO["custom-function"]()
    hidden = case.model[0](case.inputs)
    cubed = hidden**3
    loss = energy(case.model[2](cubed))
    expected = [
        torch.autograd.grad(loss, value, retain_graph=True)[0].square().mean().item()
        for value in (hidden, cubed)
    ]
    found = trace(case)
    assert output_of(found, "0").backward.ms == pytest.approx(expected[0], rel=1e-5)
    assert output_of(found, "1").backward.ms == pytest.approx(expected[1], rel=1e-5)


def test_experts_that_get_no_token_are_listed():  # modules not called, index routing
    case = ZOO["routed-experts"]()
    with torch.no_grad():
        case.model.router.bias.copy_(torch.tensor([50.0, 0.0, -50.0]))
    found = trace(case)
    assert gaps_about(found, "experts.2")
    assert parameter(found, "experts.0.weight").grad_norm > 0
    assert parameter(found, "experts.2.weight").grad_norm is None


def test_a_loss_from_a_users_function_is_in_the_loss_phase():
    found = trace(ZOO["mlp"]())
    assert found.ops[found.values[found.loss_value].op].phase == "loss"
    assert F.cross_entropy.__name__ in found.ops[-1].callable
