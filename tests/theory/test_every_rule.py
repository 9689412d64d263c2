"""Every moment rule against samples of its own op: second moments forward and backward, in standard errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from leadline.theory.replay import function_of
from leadline.theory.rule import Rule
from leadline.theory.table import rules
from theory.bench import compare

SIGMAS = 5.0  # a correct rule fails one comparison in about two million
COUNT = 2**17  # elements, so that one standard error of a Gaussian's second moment is 0.4 %


@dataclass(frozen=True)
class Case:
    """An op with its operands; `kurtosis` sets the standard error, `beyond` is what the rule's own assumption costs."""

    function: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...] = ((32, 64, 64),)
    mean: float = 0.0
    std: float = 1.0
    places: int = COUNT
    kurtosis: float = 6.0
    beyond: float = 0.0
    gradient: bool = True

    def operands(self) -> list[Tensor]:
        generator = torch.Generator().manual_seed(3)
        return [self.mean + self.std * torch.randn(shape, generator=generator) for shape in self.shapes]

    @property
    def tolerance(self) -> float:
        return SIGMAS * math.sqrt((self.kurtosis - 1) / self.places) + self.beyond


X = ((32, 64, 64),)
IMAGE = ((8, 16, 32, 32),)
POSITIVE = "sqrt rsqrt log log2 log10 log1p reciprocal lgamma digamma logit acosh"
BOUNDED = "asin acos atanh erfinv logit"
TWO = "maximum minimum fmax fmin fmod remainder atan2 hypot logaddexp xlogy floor_divide"
FLAT = "sign round floor ceil trunc fmod remainder frac threshold hardshrink hardsigmoid floor_divide"
HEAVY = "pow float_power square exp exp2 expm1 sinh cosh xlogy special_expit erfc"


def pointwise(name: str) -> Case:
    """One operand, its distribution where the function is defined; heavy tails need a wider standard error."""
    function = function_of(name)
    assert function is not None
    mean, std = (
        (3.0, 0.2) if name in POSITIVE.split() else (0.0, 0.15) if name in BOUNDED.split() else (0.1, 1.0)
    )
    mean, std = (0.5, 0.05) if name == "logit" else (mean, std)
    fixed = {
        "pow": (3.0,),
        "float_power": (2.0,),
        "clamp": (-1.0, 0.5),
        "clip": (-1.0, 0.5),
        "clamp_min": (0.2,),
        "clamp_max": (0.2,),
        "threshold": (0.1, 0.0),
        "special_expit": (),
        "fmod": (0.7,),
        "remainder": (0.7,),
    }
    given = fixed.get(name, ())
    tailed = 150.0 if name in HEAVY.split() else 12.0
    return Case(
        lambda x: function(x, *given), mean=mean, std=std, kurtosis=tailed, gradient=name not in FLAT.split()
    )


def heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def spelled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) / 4.0).softmax(-1) @ v


HEADS = ((64, 4, 32, 16),) * 3
MATRIX = ((32, 32, 64), (128, 64))
CASES: dict[str, Case] = {
    "linear": Case(F.linear, MATRIX, places=2**11, kurtosis=3),
    "bilinear": Case(
        lambda a, b, w: F.bilinear(a, b, w), ((512, 16), (512, 16), (256, 16, 16)), places=2**10
    ),
    "matmul": Case(torch.matmul, ((64, 32, 32), (64, 32, 32)), places=2**14),
    "mm": Case(torch.mm, ((512, 128), (128, 512)), places=2**14),
    "bmm": Case(torch.bmm, ((64, 32, 32), (64, 32, 32)), places=2**14),
    "mv": Case(torch.mv, ((8192, 64), (64,)), places=2**6, gradient=False),
    "inner": Case(torch.inner, ((512, 128), (512, 128)), places=2**14),
    "addmm": Case(lambda x, b, w: torch.addmm(b, x, w), ((1024, 64), (128,), (64, 128)), places=2**11),
    "baddbmm": Case(
        lambda x, b, w: torch.baddbmm(b, x, w), ((64, 32, 32), (64, 32, 32), (64, 32, 32)), places=2**13
    ),
    "einsum": Case(
        lambda a, b: torch.einsum("bij,bjk->bik", a, b), ((64, 32, 32), (64, 32, 32)), places=2**14
    ),
    "conv1d": Case(lambda x, w: F.conv1d(x, w, padding=1), ((16, 16, 128), (32, 16, 3)), places=2**10),
    "conv2d": Case(
        lambda x, w: F.conv2d(x, w, stride=2, padding=2, groups=2), (*IMAGE, (32, 8, 5, 5)), places=2**11
    ),
    "conv3d": Case(
        lambda x, w: F.conv3d(x, w, dilation=2), ((4, 8, 12, 12, 12), (16, 8, 2, 2, 2)), places=2**10
    ),
    "conv_transpose1d": Case(
        lambda x, w: F.conv_transpose1d(x, w, stride=2), ((16, 16, 128), (16, 32, 4)), places=2**10
    ),
    "conv_transpose2d": Case(
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1), (*IMAGE, (16, 8, 4, 4)), places=2**10
    ),
    "conv_transpose3d": Case(
        lambda x, w: F.conv_transpose3d(x, w), ((4, 8, 8, 8, 8), (8, 16, 2, 2, 2)), places=2**9
    ),
    "add": Case(lambda x, y: x + 2 * y, X * 2, mean=0.5),
    "sub": Case(lambda x, y: x - y, X * 2, mean=0.5),
    "rsub": Case(lambda x: torch.rsub(x, 1.0), mean=0.5),
    "mul": Case(lambda x, y: x * y, X * 2, mean=0.5, kurtosis=9),
    "div": Case(lambda x: x / 3.0, mean=0.5),
    "neg": Case(torch.neg, mean=0.5),
    "prelu": Case(lambda x: F.prelu(x, torch.full((1,), 0.25))),
    "softmax": Case(lambda x: x.softmax(-1), places=2**12, beyond=0.03),
    "log_softmax": Case(lambda x: x.log_softmax(-1), beyond=0.02),
    "scaled_dot_product_attention": Case(heads, HEADS, places=2**13, beyond=0.05),
    "attention spelled out": Case(spelled, HEADS, places=2**13, beyond=0.05),
    "layer_norm": Case(lambda x: F.layer_norm(x, (64,)), mean=1.0, beyond=0.01),
    "rms_norm": Case(lambda x: F.rms_norm(x, (64,)), mean=1.0, beyond=0.02),
    "batch_norm": Case(lambda x: F.batch_norm(x, None, None, training=True), IMAGE, mean=1.0),
    "group_norm": Case(lambda x: F.group_norm(x, 4), IMAGE, mean=1.0),
    "instance_norm": Case(lambda x: F.instance_norm(x), IMAGE, mean=1.0),
    "normalize": Case(lambda x: F.normalize(x, dim=-1), beyond=0.03),
    "mean": Case(lambda x: x.mean(-1), mean=0.2, places=2**11),
    "sum": Case(lambda x: x.sum(-1), mean=0.2, places=2**11),
    "var": Case(lambda x: x.var(-1), mean=0.2, places=2**11, beyond=0.05),
    "std": Case(lambda x: x.std(-1), mean=0.2, places=2**11, beyond=0.05),
    "norm": Case(lambda x: x.norm(dim=-1), places=2**11, beyond=0.02),
    "vector_norm": Case(lambda x: torch.linalg.vector_norm(x, dim=-1), places=2**11, beyond=0.02),
    "logsumexp": Case(lambda x: x.logsumexp(-1), std=0.5, places=2**11, beyond=0.05),
    "cumsum": Case(lambda x: x.cumsum(1), places=2**11, beyond=0.02),
    "avg_pool2d": Case(lambda x: F.avg_pool2d(x, 2), IMAGE, mean=0.5),
    "avg_pool1d": Case(lambda x: F.avg_pool1d(x, 4), ((16, 32, 256),)),
    "adaptive_avg_pool2d": Case(lambda x: F.adaptive_avg_pool2d(x, 4), IMAGE, mean=0.5, places=2**11),
    "max_pool2d": Case(lambda x: F.max_pool2d(x, 2), IMAGE, mean=0.5),
    "max_pool1d": Case(lambda x: F.max_pool1d(x, 4), ((16, 32, 256),)),
    "adaptive_max_pool2d": Case(lambda x: F.adaptive_max_pool2d(x, 8), IMAGE),
    "interpolate": Case(lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), IMAGE),
    "glu": Case(lambda x: F.glu(x, -1), kurtosis=9),
    "dropout": Case(lambda x: F.dropout(x, 0.3), mean=0.5, kurtosis=9),
    "cat": Case(lambda x, y: torch.cat([x, 2 * y], -1), X * 2, mean=0.5),
    "stack": Case(lambda x, y: torch.stack([x, 2 * y]), X * 2, mean=0.5),
    "pad": Case(lambda x: F.pad(x, (3, 5)), mean=0.5),
    "getitem": Case(lambda x: x[:, 5:20, 0], mean=0.5, places=2**8),
    "chunk": Case(lambda x: x.chunk(4, -1)[0], mean=0.5, places=2**14),
    "expand": Case(lambda x: x.unsqueeze(0).expand(3, 32, 64, 64), mean=0.5),
    "repeat": Case(lambda x: x.repeat(2, 1, 1), mean=0.5),
    "reshape": Case(lambda x: x.reshape(64, 32, 64), mean=0.5),
    "transpose": Case(lambda x: x.transpose(0, 1), mean=0.5),
    "permute": Case(lambda x: x.permute(2, 0, 1), mean=0.5),
    "flip": Case(lambda x: x.flip(0), mean=0.5),
    "roll": Case(lambda x: x.roll(3, 1), mean=0.5),
}
UNARY = [
    name
    for name in sorted(next(rule for rule in [rules()["gelu"]]).names)
    if name not in TWO.split()
    and name
    not in (
        "sinc",
        "nan_to_num",
        "celu",
        "rrelu",
        "tan",
        "erfinv",
        "lgamma",
        "digamma",
        "acosh",
        "special_expit",
        "logsigmoid",
    )
]
CASES |= {name: pointwise(name) for name in UNARY if name not in CASES}


@pytest.mark.parametrize("name", CASES)
def test_a_rule_agrees_with_samples_of_its_own_op(name: str):
    case = CASES[name]
    found = compare(case.function, *case.operands())
    assert found.refusals == {}
    predicted, measured = found.forward
    assert abs(math.log(predicted / measured)) < case.tolerance
    if case.gradient:
        predicted, measured = found.backward
        assert abs(math.log(predicted / measured)) < case.tolerance


def test_a_rule_wrong_by_three_percent_is_caught():
    case = CASES["gelu"]
    found = compare(case.function, torch.randn(4 * COUNT, generator=torch.Generator().manual_seed(3)))
    error, standard_error = math.log(found.forward[0] / found.forward[1]), math.sqrt(5 / (4 * COUNT))
    assert abs(error) < SIGMAS * standard_error
    assert abs(error + math.log(1.03)) > SIGMAS * standard_error - abs(error)
    assert SIGMAS * standard_error < math.log(1.03)


def test_two_rules_for_one_name_are_an_error(monkeypatch: pytest.MonkeyPatch):
    from leadline.theory import table

    doubled = Rule(names=frozenset({"gelu"}), run=lambda call: None, assumes="")  # type: ignore[arg-type, return-value]
    monkeypatch.setattr(table, "collect", lambda package, kind: (doubled, doubled))
    table.rules.cache_clear()
    with pytest.raises(ValueError, match="gelu"):
        table.rules()
    table.rules.cache_clear()
