"""Less usual ways to call an op: refused with a reason that names the cause, or predicted as well as the usual ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from msgspec.structs import replace
from torch import Tensor

from leadline.readings.theory.field import independent
from leadline.readings.theory.moments.pointwise import replay, slopes
from leadline.readings.theory.prediction import predict
from leadline.readings.theory.signal import Sources, constant_signal
from leadline.tracer.trace import trace
from tests.support.theory_bench import Bench, compare

CLASSES, LONG = torch.arange(8) % 4, torch.arange(8)
CHOSEN = torch.arange(32).reshape(8, 4) % 3 == 0
PLACES = torch.arange(16).reshape(8, 2) % 4


def written_up_to_a_tensor(x: Tensor) -> Tensor:
    whole = torch.zeros(8, 4)
    whole[:, : torch.tensor(2)] = x[:, :2]
    return whole


def written_where_chosen(x: Tensor) -> Tensor:
    whole = torch.zeros(8, 4)
    whole[torch.arange(8) % 2 == 0] = x[:4]
    return whole


def product_with_itself(x: Tensor) -> Tensor:
    rows = x[:4] * 2.0
    return rows @ rows


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "a diagonal": (lambda x: torch.einsum("ii,ij->j", x[:4], x[:4] * 2), "a diagonal in einsum"),
    "a bias with a factor": (lambda x: torch.addmm(x, x, x[:4], beta=0.5), "a bias multiplied by beta"),
    "a weighted loss": (
        lambda x: F.cross_entropy(x, CLASSES, weight=torch.ones(4)),
        "a loss with weights",
    ),
    "weighted positives": (
        lambda x: F.binary_cross_entropy_with_logits(x, CHOSEN.float(), pos_weight=torch.ones(4)),
        "a loss with weights",
    ),
    "a loss for each sample": (lambda x: F.cross_entropy(x, CLASSES, reduction="none"), "not reduced"),
    "targets as logarithms": (
        lambda x: F.kl_div(x.log_softmax(-1), x.detach(), log_target=True, reduction="sum"),
        "targets given as logarithms",
    ),
    "the 1-norm": (lambda x: F.normalize(x, p=1.0), "a norm that is not Euclidean"),
    "the largest entry": (lambda x: x.norm(p=float("inf")), "a norm that is not Euclidean"),
    "the norm of zeros": (lambda x: (x * 0.0).norm(), "the norm of zeros"),
    "dropout of all elements": (lambda x: F.dropout(x, 1.0), "dropout of all"),
    "copies in one row": (lambda x: x.repeat_interleave(2), "a repetition that flattens"),
    "a quotient of two": (lambda x: x[:4] / x[4:].exp(), "quotient"),
    "a quotient by zero": (lambda x: x / torch.zeros(4), "a quotient by zero"),
    "a factor of infinity": (lambda x: (x * math.inf).clamp(-1, 1), "the prediction is not finite"),
    "a truth value as factor": (lambda x: x * True, "nothing is known about the input of mul"),
    "the direction of zeros": (lambda x: F.normalize(x * 0.0), "a norm of a constant tensor"),
    "a truth value that is written": (lambda x: x.scatter(1, PLACES, value=True), "writes something that is not known"),
    "a slice up to a tensor": (written_up_to_a_tensor, "a slice whose ends are not known"),
    "the largest of a long row": (lambda x: x.repeat(1, 500).topk(2).values, "the largest 2 of 2000 elements"),
    "elements chosen by a mask that are written": (written_where_chosen, "elements depend on a mask"),
    "a square of a matrix": (product_with_itself, "a product of a tensor with itself"),
    "a function that overflows": (lambda x: (x * 1e6 + 1e6).exp().clamp(-1, 1), "exp is not finite for most"),
    "a choice between two": (lambda x: torch.where(x > 0, x, torch.roll(x, 1, 0)), "where of tensors with different"),
    "several sources": (lambda x: torch.lerp(x, torch.roll(x, 1, 0), 0.5), "with different sources"),
}  # fmt: skip


@pytest.mark.parametrize("title", REFUSED)
def test_a_call_that_a_rule_does_not_cover_is_refused_with_its_reason(title: str):
    function, reason = REFUSED[title]
    found = compare(function, torch.randn(8, 4, generator=torch.Generator().manual_seed(0)))
    assert any(reason in refusal for refusal in found.refusals.values()), found.refusals


def doubled_in_place(x: Tensor) -> Tensor:
    """A view that is written, of a tensor that nothing else reads."""
    view = x.clone()[:, :8]
    view.mul_(2.0)
    return view


ROWS, COLUMNS = 512, 32


def written(index: Any, piece: Callable[[Tensor], Tensor], *shape: int) -> Callable[[Tensor], Tensor]:
    """Writes a piece of `x` into zeros."""

    def write(x: Tensor) -> Tensor:
        whole = torch.zeros(*shape)
        whole[index] = piece(x)
        return whole

    return write


KERNEL = torch.randn(COLUMNS, COLUMNS, 3, generator=torch.Generator().manual_seed(3))
FIRST_PLACES = torch.zeros(ROWS, 4, dtype=torch.long) + torch.arange(4)
WEIGHT = torch.randn(COLUMNS, COLUMNS, generator=torch.Generator().manual_seed(2))
PREDICTED: dict[str, Callable[[Tensor], Tensor]] = {
    "a product times a number": lambda x: torch.addmm(x, x, WEIGHT, alpha=0.5),
    "a sum over letters": lambda x: torch.einsum("ij,kl->k", x + 1.0, torch.ones(3, 5)),
    "a reflected product": lambda x: x.__rmatmul__(torch.ones(3, ROWS)),
    "rows of several axes with rows": lambda x: torch.inner(x[:256].reshape(4, 64, COLUMNS), x[256:]),
    "a sum of operands by name": lambda x: torch.add(input=x, other=x * 2.0),
    "a difference of operands by name": lambda x: torch.sub(input=x, other=3.0),
    "a constant function": lambda x: torch.sign(x.abs() + 1.0) * 3.0,
    "copies of one tensor, stacked": lambda x: torch.stack([x.relu(), x.relu()]).mean(0),
    "weight first": lambda x: torch.matmul(input=torch.ones(3, ROWS), other=x),
    "dropout that is off": lambda x: F.dropout(x, 0.5, training=False),
    "a number over it": lambda x: 2.0 / (3.0 + x.square()),
    "a power of a number": lambda x: 2.0**x,
    "elements at other places": lambda x: torch.roll(x, 3, -1),
    "pixels": lambda x: F.pixel_shuffle(x.reshape(8, 16, 4, COLUMNS), 2),
    "every other row": lambda x: x[::2],
    "chosen rows": lambda x: x[torch.arange(ROWS) % 2 == 0],
    "copies": lambda x: x.relu().repeat(2, 1),
    "the sum of copies": lambda x: x[:, :2].repeat(1, 3).sum(-1),
    "the sum of the largest": lambda x: x.topk(2).values.sum(-1),
    "one row copied into all": lambda x: torch.zeros(ROWS, ROWS * COLUMNS).copy_(x.reshape(-1)),
    "softmax of one row": lambda x: x.reshape(1, -1).softmax(-1),
    "a power of two constants": lambda x: x * torch.pow(x.square().mean(), x.abs().mean()),
    "a constant at other places": lambda x: x * torch.flip(x.square().mean(0), (0,)),
    "the mean of a variance and mean": lambda x: torch.var_mean(x + 1.0, -1)[1],
    "a norm with a bias alone": lambda x: F.layer_norm(x, (COLUMNS,), None, torch.arange(COLUMNS) / 8),
    "padding to the same length": lambda x: F.conv1d(x.reshape(16, COLUMNS, -1), KERNEL, padding="same"),
    "a number scattered by keyword": lambda x: x.scatter(1, FIRST_PLACES, value=2.0),
    "rows up to a tensor": lambda x: x[: torch.tensor(256)],
    "chosen by other scores": lambda x: x.gather(1, x[:, 1:].topk(8).indices),
    "no rows beside all": lambda x: torch.cat([x[:0].reshape(0, 8, 4).reshape(0, COLUMNS), x]),
    "a view that was written": doubled_in_place,
    "largest of softmax, cast": lambda x: x.softmax(-1).double().float().topk(4, -1).values,
}


WRITTEN: dict[str, Callable[[Tensor], Tensor]] = {
    "one row": written(0, lambda x: x.reshape(4, -1)[0], 4, 4096),
    "rows at indices": written(torch.arange(ROWS // 2), lambda x: x[: ROWS // 2], ROWS, COLUMNS),
    "one column": written((slice(None), 0), lambda x: x[:, 0], ROWS, 4),
    "the only column": written((slice(None), 0), lambda x: x[:, 0], ROWS, 1),
    "one token of each sample": written((slice(None), 0), lambda x: x.reshape(64, 8, -1)[:, 0], 64, 8, COLUMNS),
    "one token for all samples": written((slice(None), 0), lambda x: x.reshape(4, -1)[0], 8, 2, 4096),
    "the last feature": written((..., -1), lambda x: x.reshape(64, 8, -1)[..., -1], 64, 8, COLUMNS),
    "a column with a new axis": written((None, slice(None), 0), lambda x: x[None, :, 0], ROWS, 4),
}  # fmt: skip


@pytest.mark.parametrize("title", WRITTEN)
def test_a_piece_that_is_written_and_its_gradient_are_predicted_within_thirty_percent(title: str):
    found = compare(WRITTEN[title], torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1)))
    assert found.refusals == {}
    for predicted, measured in (found.forward, found.backward):
        assert math.log(predicted / measured) == pytest.approx(0, abs=math.log(1.3))


@pytest.mark.parametrize("title", PREDICTED)
def test_an_unusual_call_is_predicted_within_ten_percent(title: str):
    found = compare(PREDICTED[title], torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1)))
    predicted, measured = found.forward
    assert found.refusals == {}
    assert math.log(predicted / measured) == pytest.approx(0, abs=math.log(1.1))


CREATED: dict[str, tuple[Callable[[], Tensor], float, float]] = {  # mean and second moment
    "arange to": (lambda: torch.arange(5.0), 2.0, 6.0),
    "arange between": (lambda: torch.arange(1.0, 5.0), 2.5, 7.5),
    "arange by": (lambda: torch.arange(0.0, 8.0, 2.0), 3.0, 14.0),
    "linspace": (lambda: torch.linspace(-1.0, 1.0, 5), 0.0, 0.5),
    "eye": (lambda: torch.eye(4), 0.25, 0.25),
    "scalar": (lambda: torch.scalar_tensor(3.0), 3.0, 9.0),
}


@pytest.mark.parametrize("title", CREATED)
def test_a_constant_that_was_not_measured_is_predicted_from_its_op(title: str):
    make, mean, ms = CREATED[title]
    seen = trace(Bench(lambda x: x * make().mean(), torch.randn(3)), torch.randn(3), loss=lambda out: out)
    op = next(op for op in seen.ops if op.name in ("arange", "linspace", "eye", "scalar_tensor"))
    values = tuple(replace(each, forward=None) if each.op == op.index else each for each in seen.values)
    field = predict(replace(seen, values=values)).forward.predicted[op.outputs[0]]
    assert (field.mean, field.ms) == pytest.approx((mean, ms))


UNKNOWN_CONSTANTS: dict[str, tuple[Callable[[], Tensor], str]] = {
    "full": (lambda: torch.full((4,), torch.tensor(2.0)), "a tensor of unknown values"),
    "arange": (lambda: torch.arange(torch.tensor(4.0)), "a sequence with unknown ends"),
}


@pytest.mark.parametrize("name", UNKNOWN_CONSTANTS)
def test_a_constant_made_of_a_tensor_that_was_not_measured_is_refused(name: str):
    make, reason = UNKNOWN_CONSTANTS[name]
    seen = trace(Bench(lambda x: x * make(), torch.randn(4)), torch.randn(4), loss=lambda out: out)
    op = next(op for op in seen.ops if op.name == name)
    values = tuple(replace(each, forward=None) if each.op == op.index else each for each in seen.values)
    assert predict(replace(seen, values=values)).forward.refusals[op.index] == reason


LATE: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "heads of other axes": (
        lambda x: F.scaled_dot_product_attention(x[None], x[None, None], x[None, None]),
        "different numbers of axes",
    ),
    "targets of another shape": (
        lambda x: F.kl_div(x.log_softmax(-1), x.detach().softmax(-1)[:1].mul(1.0), reduction="sum"),
        "targets of another shape",
    ),
}  # fmt: skip


@pytest.mark.parametrize("title", LATE)
def test_operands_that_do_not_match_are_refused_with_a_reason(title: str):
    function, reason = LATE[title]
    found = compare(function, torch.randn(8, 4, generator=torch.Generator().manual_seed(0)))
    assert any(reason in refusal for refusal in found.refusals.values()), found.refusals


def test_an_op_without_a_torch_function_cannot_be_replayed_and_a_step_function_has_slope_zero():
    seen = trace(Bench(lambda x: torch.sign(x), torch.randn(4)), torch.randn(4), loss=lambda out: out)
    op = next(op for op in seen.ops if op.name == "sign")
    value = op.inputs[0]
    assert slopes(op, {value: torch.randn(3, dtype=torch.float64)})[value].tolist() == [0.0] * 3
    with pytest.raises(LookupError, match="conjure"):
        replay(replace(op, name="conjure"), {value: torch.ones(1)})


def test_constants_have_no_covariance_and_a_tensor_has_its_variance_with_itself():
    sources = Sources()
    x = sources.gaussian(independent((4,), 1.0, 3.0))
    assert sources.covariance(x, x) == pytest.approx(2.0)
    assert sources.covariance(x, constant_signal((4,), 2.0)) == 0.0
    assert sources.covariance(x, sources.gaussian(independent((4,), 0.0, 1.0))) == 0.0


UNKNOWN: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, ...], str]] = {
    "joined": (lambda x, y: torch.cat([x, y]), (8, 4), "nothing is known about a joined tensor"),
    "written": (lambda x, y: x.scatter(1, PLACES, y), (8, 2), "nothing is known about what scatter writes"),
    "slopes": (F.prelu, (4,), "nothing is known about the slopes"),
    "factor": (lambda x, y: torch.addmm(x, y, x[:4]), (8, 4), "nothing is known about the factors"),
    "weight": (lambda x, y: F.linear(x, y), (4, 4), "nothing is known about the weight"),
    "bias": (lambda x, y: F.linear(x, torch.eye(4), y), (4,), "nothing is known about the bias"),
    "table": (lambda x, y: x + F.embedding(LONG, y), (8, 4), "nothing is known about the table"),
}


@pytest.mark.parametrize("title", UNKNOWN)
def test_an_operand_of_which_nothing_was_measured_is_named_as_the_reason(title: str):
    function, shape, reason = UNKNOWN[title]
    noise = torch.ones(16 if title == "joined" else 8, 4)
    seen = trace(Bench(function, torch.randn(8, 4), torch.randn(shape)), noise, loss=lambda out: out)
    forgotten = [op for op in seen.ops if op.name == "mul"][1].outputs[0]
    values = tuple(replace(each, forward=None) if each.id == forgotten else each for each in seen.values)
    weights = (seen.parameters[0], replace(seen.parameters[1], mean=None, ms=None))
    refusals = predict(replace(seen, values=values, parameters=weights)).forward.refusals
    assert any(reason in each for each in refusals.values()), refusals


def test_a_tensor_that_reads_only_a_shape_has_slope_zero():
    seen = trace(
        Bench(lambda x: x + torch.zeros_like(x), torch.randn(4)), torch.randn(4), loss=lambda out: out
    )
    op = next(op for op in seen.ops if op.name == "zeros_like")
    value = op.inputs[0]
    assert slopes(op, {value: torch.randn(3, dtype=torch.float64)})[value].tolist() == [0.0] * 3


def test_without_a_loss_no_gradient_is_predicted():
    seen = trace(Bench(torch.relu, torch.randn(8, 4)), torch.randn(8, 4), loss=lambda out: out)
    assert predict(seen).backward.fields
    assert predict(replace(seen, loss_value=None)).backward.fields == {}
