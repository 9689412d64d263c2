"""A layer has the same symmetries however its arguments are written, and they are the ones that algebra gives it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leadline
from leadline.readings.symmetry.exact_model import ReadRecorder

WIDTH = 4
Layer = Callable[[Tensor, Tensor, Tensor], Tensor]
Group = frozenset[frozenset[tuple[str, int]]]


class Between(nn.Module):
    """A layer with two parameters, between two matrices."""

    def __init__(self, layer: Layer, gain: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = layer
        self.enter, self.leave = (nn.Parameter(torch.randn(WIDTH, WIDTH)) for _ in range(2))
        self.gain, self.shift = (nn.Parameter(torch.randn(size)) for size in (gain, (WIDTH,)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x @ self.enter, self.gain, self.shift) @ self.leave


def group(layer: Layer, gain: tuple[int, ...] = (WIDTH,)) -> Group:
    found = leadline.symmetries(Between(layer, gain), torch.randn(8, WIDTH))
    return frozenset(frozenset(each.exponents.items()) for each in found.generators)


def expected(*generators: dict[str, int]) -> Group:
    return frozenset(frozenset(each.items()) for each in generators)


def channels(x: Tensor) -> Tensor:
    return x.unsqueeze(-1).expand(-1, -1, 3) * torch.arange(1.0, 4.0)


OWN, STORED = True, False  # whose statistics a norm uses, at the place of `training` and `use_input_stats`
ZEROS, ONES, IDS = torch.zeros(WIDTH), torch.ones(WIDTH), torch.arange(8) % WIDTH
NORM = expected({"enter": 1}, {"gain": 1, "shift": 1, "leave": -1})
CALLS: dict[str, tuple[Layer, Layer]] = {
    "layer_norm": (
        lambda x, g, b: F.layer_norm(x, (WIDTH,), g, b, 1e-6),
        lambda x, g, b: F.layer_norm(x, normalized_shape=(WIDTH,), weight=g, bias=b, eps=1e-6),
    ),
    "group_norm": (
        lambda x, g, b: F.group_norm(x, 2, g, b, 1e-6),
        lambda x, g, b: F.group_norm(x, num_groups=2, weight=g, bias=b, eps=1e-6),
    ),
    "torch.group_norm": (
        lambda x, g, b: torch.group_norm(x, 2, g, b, 1e-6),
        lambda x, g, b: torch.group_norm(x, num_groups=2, weight=g, bias=b, eps=1e-6),
    ),
    "rms_norm": (
        lambda x, g, b: F.rms_norm(x, (WIDTH,), g, 1e-6) + b,
        lambda x, g, b: F.rms_norm(x, normalized_shape=(WIDTH,), weight=g, eps=1e-6) + b,
    ),
    "batch_norm": (
        lambda x, g, b: F.batch_norm(x, ZEROS.clone(), ONES.clone(), g, b, OWN, 0.1, 1e-6),
        lambda x, g, b: F.batch_norm(
            x, running_mean=ZEROS.clone(), running_var=ONES.clone(), weight=g, bias=b, training=True
        ),
    ),
    "instance_norm": (
        lambda x, g, b: F.instance_norm(channels(x), None, None, g, b, OWN, 0.1, 1e-6).sum(-1),
        lambda x, g, b: F.instance_norm(channels(x), weight=g, bias=b, use_input_stats=True).sum(-1),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_norm_has_a_free_input_and_a_gain_and_shift_that_move_together(name: str):
    by_place, by_name = CALLS[name]
    assert group(by_place) == NORM
    assert group(by_name) == NORM


@pytest.mark.parametrize(
    "layer",
    [
        lambda x, g, b: F.batch_norm(x, ZEROS.clone(), ONES.clone(), g, b, STORED, 0.1, 1e-6),
        lambda x, g, b: F.batch_norm(x, ZEROS.clone(), ONES.clone(), weight=g, bias=b),
    ],
)
def test_a_batch_norm_with_stored_statistics_fixes_the_scale_of_its_input(layer: Layer):
    assert group(layer) == expected({"gain": 1, "shift": 1, "leave": -1})


@pytest.mark.parametrize("statistics", [OWN, STORED], ids=["own", "stored"])
def test_a_batch_norm_makes_a_shift_before_it_inert_only_if_it_subtracts_the_mean_of_the_batch(
    statistics: bool,
):
    found = group(
        lambda x, g, b: F.batch_norm(x + b, ZEROS.clone(), ONES.clone(), g, None, statistics, 0.1, 1e-6)
    )
    assert (frozenset({("shift", 1)}) in found) == (statistics is OWN)


@pytest.mark.parametrize(
    "layer",
    [
        lambda x, g, b: F.instance_norm(channels(x), ZEROS.clone(), ONES.clone(), g, b, STORED).sum(-1),
        lambda x, g, b: F.instance_norm(
            channels(x), ZEROS.clone(), ONES.clone(), weight=g, bias=b, use_input_stats=False
        ).sum(-1),
    ],
)
def test_an_instance_norm_with_stored_statistics_fixes_the_scale_of_its_input(layer: Layer):
    assert group(layer) == expected({"gain": 1, "shift": 1, "leave": -1})


@pytest.mark.parametrize(
    "layer",
    [
        lambda x, g, b: F.rms_norm(x, (WIDTH,), g, 1e-6) + b,
        lambda x, g, b: F.rms_norm(x, (WIDTH,), weight=g, eps=1e-6) + b,
    ],
)
def test_an_rms_norm_has_a_gain_and_no_shift(layer: Layer):
    assert group(layer) == NORM


@pytest.mark.parametrize(
    "layer",
    [lambda x, w, b: F.linear(x, w, b), lambda x, w, b: F.linear(x, weight=w, bias=b),
     lambda x, w, b: torch.addmm(b, x, w), lambda x, w, b: torch.baddbmm(b.expand(1, 8, -1), x[None], w[None])[0]],
    ids=["by place", "by name", "addmm", "baddbmm"],
)  # fmt: skip
def test_a_bias_takes_the_scale_of_the_product_it_is_added_to(layer: Layer):
    assert group(layer, (WIDTH, WIDTH)) == expected(
        {"enter": 1, "gain": -1}, {"enter": 1, "shift": 1, "leave": -1}
    )


def test_a_first_summand_that_is_multiplied_by_zero_is_free():
    found = group(lambda x, w, b: torch.addmm(b, x, w, beta=0), (WIDTH, WIDTH))
    assert frozenset({("shift", 1)}) in found


@pytest.mark.parametrize(
    "layer",
    [lambda x, t, b: F.embedding(IDS, t) + 0 * x + b, lambda x, t, b: F.embedding(IDS, weight=t) + 0 * x + b,
     lambda x, t, b: torch.embedding(t, IDS) + 0 * x + b],
    ids=["by place", "by name", "table first"],
)  # fmt: skip
def test_rows_of_a_table_scale_as_the_table_does(layer: Layer):
    assert any(
        dict(each).get("gain", 0) * dict(each).get("leave", 0) == -1 for each in group(layer, (WIDTH, WIDTH))
    )


def test_a_bound_on_the_size_of_rows_holds_the_scale_of_the_table():
    found = group(lambda x, t, b: F.embedding(IDS, t, max_norm=1.0) + x + b, (WIDTH, WIDTH))
    assert not any("gain" in dict(each) for each in found)


@pytest.mark.parametrize(
    "layer",
    [lambda x, m, b: F.scaled_dot_product_attention(x[None], x[None], x[None] + b, m)[0],
     lambda x, m, b: F.scaled_dot_product_attention(x[None], x[None], x[None] + b, attn_mask=m)[0]],
    ids=["by place", "by name"],
)  # fmt: skip
def test_an_additive_mask_of_attention_may_not_scale(layer: Layer):
    assert group(layer, (8, 8)) == frozenset()


@pytest.mark.parametrize(("moments", "power"), [(torch.var_mean, 2), (torch.std_mean, 1)])
def test_a_variance_scales_as_the_square_of_its_input(moments: Callable[..., tuple], power: int):
    def layer(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
        return moments(x, dim=-1, keepdim=True)[0] * ONES

    (found,) = (dict(each) for each in group(layer) if dict(each).keys() == {"enter", "leave"})
    assert found["leave"] / found["enter"] == -power


@pytest.mark.parametrize(
    ("layer", "power"),
    [(lambda x, g, b: x**2, 2), (lambda x, g, b: torch.pow(x, 3), 3), (lambda x, g, b: x.square(), 2),
     (lambda x, g, b: 2 / (x * x + 0 * x), -2), (lambda x, g, b: x.abs().sqrt() * x.abs().sqrt(), 1)],
    ids=["square by power", "cube", "square", "divided by a square", "roots"],
)  # fmt: skip
def test_powers_multiply_the_exponent(layer: Layer, power: int):
    (found,) = (dict(each) for each in group(layer) if dict(each).keys() == {"enter", "leave"})
    assert found["leave"] / found["enter"] == -power


def powers(layer: Layer) -> list[float]:
    """By how much the layer multiplies the exponent of its input; nothing if that input may not scale."""
    found = [dict(each) for each in group(layer)]
    return [-each["leave"] / each["enter"] for each in found if each.keys() == {"enter", "leave"}]


@pytest.mark.parametrize(
    ("layer", "expected_powers"),
    [
        (lambda x, g, b: x / (x.abs().sum(-1, keepdim=True) + 1e-6), []),
        (lambda x, g, b: x * (x.square().mean(-1, keepdim=True) + 1e-6) ** -0.5, []),
        (lambda x, g, b: x / (x.square().mean(-1, keepdim=True) + 1e-6) ** 0.5, []),
        (lambda x, g, b: x / x.norm(dim=-1, keepdim=True).clamp(min=1e-6), []),
        (lambda x, g, b: x / x.abs().amax(-1, keepdim=True).clamp_min(1e-6).view(8, 1).float(), []),
        (lambda x, g, b: 1.0 / (x.abs() + 1e-6), [-1]),
        (lambda x, g, b: x.clamp(min=0), [1]),
        (lambda x, g, b: x.clamp_max(0), [1]),
    ],
    ids=["sum", "negative power", "power", "clamped norm", "after a view", "one over", "clamp at zero",
         "clamp_max at zero"],
)  # fmt: skip
def test_a_small_number_before_a_division_is_a_guard_and_a_bound_at_zero_is_not(
    layer: Layer, expected_powers: list[float]
):
    found = group(layer)
    if expected_powers:
        assert powers(layer) == expected_powers
    else:
        assert frozenset({("enter", 1)}) in found


@pytest.mark.parametrize(
    "layer",
    [lambda x, g, b: x + 1e-6, lambda x, g, b: (x + 1e-6).relu() / 2.0, lambda x, g, b: x.clamp(-1.0, 1.0),
     lambda x, g, b: x.clamp_max(2.0), lambda x, g, b: x.clamp(min=1e-6), lambda x, g, b: 2.0**x,
     lambda x, g, b: x ** x.abs(),
     lambda x, g, b: torch.nn.functional.threshold(x, 0.5, 0.0)],
    ids=["added", "read by a ReLU", "two bounds", "bound above", "not divided by", "as an exponent", "both",
         "threshold"],
)  # fmt: skip
def test_a_constant_fixes_the_scale_of_what_it_is_added_to(layer: Layer):
    assert powers(layer) == []
    assert frozenset({("enter", 1)}) not in group(layer)


def test_a_small_number_that_is_not_only_divided_by_is_no_guard():
    def layer(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
        size = x.abs() + 1e-6
        return x.square() / size.view(8, WIDTH) + size

    assert powers(layer) == []


def test_the_terms_of_a_fused_product_scale_alike():
    product = group(lambda x, g, b: torch.addcmul(x, g, b))
    quotient = group(lambda x, g, b: torch.addcdiv(x, g, b))
    assert expected({"gain": 1, "shift": -1}) <= product
    assert expected({"gain": 1, "shift": 1}) <= quotient


@pytest.mark.parametrize(
    "layer",
    [lambda x, g, b: x.new_zeros(8, WIDTH).copy_(x), lambda x, g, b: x + torch.full((WIDTH,), 0.0),
     lambda x, g, b: x * torch.full((WIDTH,), 3.0), lambda x, g, b: x + (x * 2).zero_()],
    ids=["copied", "zero added", "a filled factor", "zeroed"],
)  # fmt: skip
def test_the_content_of_an_overwritten_tensor_does_not_matter(layer: Layer):
    assert powers(layer) == [1]


def test_a_tensor_filled_with_a_number_fixes_the_scale():
    assert powers(lambda x, g, b: x + torch.full((WIDTH,), 3.0)) == []
    assert powers(lambda x, g, b: x + (x * 2).fill_(3.0)) == []


def test_sampling_coordinates_may_not_scale_and_the_image_may():
    def looked_up(picture: Tensor, places: Tensor) -> Tensor:
        grid = places.reshape(1, 1, -1, 2).expand(8, -1, -1, -1)
        return F.grid_sample(picture.reshape(8, 1, 2, 2), grid, align_corners=False).reshape(8, -1)

    assert powers(lambda x, g, b: looked_up(x, torch.randn(WIDTH, 2))) == [1]
    assert not any("gain" in dict(each) for each in group(lambda x, g, b: looked_up(x, g), (WIDTH, 2)))


class Written(nn.Module):
    """Attention as it is written by hand."""

    def __init__(self, scores: Callable[[Tensor], Tensor], *, dim: int = -1) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.scores, self.dim = scores, dim

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x).unsqueeze(1) for each in (self.query, self.key, self.value))
        return torch.softmax(self.scores(q @ k.transpose(-2, -1)), dim=self.dim) @ v


MASK = torch.ones(6, 6).tril() == 0


@pytest.mark.parametrize(
    ("scores", "dim", "free"),
    [
        (lambda s: s / 2, -1, True),
        (lambda s: (s * 0.5).masked_fill(MASK, float("-inf")), 3, True),
        (lambda s: s.tanh(), -1, False),
        (lambda s: s, -2, False),
        (lambda s: s + s.mean(), -1, False),
    ],
    ids=["scaled", "masked", "squashed", "over the queries", "read twice"],
)
def test_the_bias_of_keys_is_inert_before_a_softmax_over_the_keys(scores, dim: int, free: bool):
    torch.manual_seed(0)
    found = leadline.symmetries(Written(scores, dim=dim), torch.randn(2, 6, WIDTH))
    assert ("key.bias" in found.inert) == free


@pytest.mark.parametrize(
    ("layer", "is_held"),
    [(lambda x, g, b: x.clamp(-1.0, 1.0), True), (lambda x, g, b: x.clamp(max=2.0), True),
     (lambda x, g, b: x.clamp(min=0.0), False), (lambda x, g, b: x.clamp_max(0), False)],
    ids=["both bounds", "upper bound", "rectified", "negative part"],
)  # fmt: skip
def test_bounds_other_than_zero_hold_the_scale_and_are_named(layer: Layer, is_held: bool):
    found = leadline.symmetries(Between(layer, (WIDTH,)), torch.randn(8, WIDTH))
    assert any("clamp" in each for each in found.record.held) == is_held


def test_the_norms_that_weight_norm_returns_scale_as_the_direction_does():
    def layer(x: Tensor, direction: Tensor, size: Tensor) -> Tensor:
        weight, norms = torch._weight_norm_interface(direction, size.unsqueeze(1), 0)
        return (x @ weight) * norms.squeeze(1)

    found = group(layer, (WIDTH, WIDTH))
    assert len(found) == 3
    assert all(sum(power for _, power in each) == 0 for each in found)  # one factor against another


def test_a_recorder_of_reads_passes_on_what_is_given_by_name():
    one, other = torch.randn(2, WIDTH)
    with ReadRecorder() as recorder:
        total = torch.add(one, other=other, alpha=2)
    assert torch.equal(total, one + 2 * other)
    assert recorder.tensor_ids == {id(one), id(other)}
