"""Reports made by hand, so that the page can be tested without a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from leadline.records import (
    Agreement,
    CheckRow,
    Coverage,
    DepthBlock,
    DepthPoint,
    DepthRange,
    DepthScale,
    Exponent,
    Finding,
    Forecast,
    Gap,
    Generator,
    Jump,
    Optimizer,
    Parting,
    Profile,
    RateScan,
    ResidualAdd,
    ScaledTensor,
    Source,
    Stream,
    Symmetry,
    Theory,
    Update,
)
from leadline.records.report import Report

Moments = Sequence[float | None]

HOSTILE = (
    "a[bold red]b[/]\x1b[31m\x1b]0;title\x07\r\n\u202e{link=x}\N{CJK UNIFIED IDEOGRAPH-6DF1}" + "z" * 300
)
HOSTILE_NAMES = (
    HOSTILE,
    "",
    "]]></failure><testcase name='x'>&amp;&lt;",
    "::error::pwned",
    "a%0A::set-output name=x::y%",
    "\n::error file=x::pwned\r\n##[error]pwned",
    "file=x,line=2,title=a:b",
    "|a|\\|b|`c``d`\\",
    "</code><script>alert(1)</script><!-- ",
    "# @everyone ![x](https://example.org/x.png) **b** _i_ ~~s~~ `",
    "nul\0 surrogate\ud800 not a character\uffff",
    "NaN",
)
"""What a module may be called, since its name is the user's."""


def block(name: str, forward: float | None, backward: float | None, **changes: Any) -> DepthBlock:
    plain: dict[str, Any] = {
        "name": name,
        "stream": 0,
        "forward_ms": forward,
        "backward_ms": backward,
        "elements": 64,
        "exit": 0,
        "weights": 1,
        "norms": 0,
        "bypassed": False,
        "residual": None,
        "params": (),
        "modules": (),
    }
    return DepthBlock(**{**plain, **changes})


def residual(placement: str = "pre") -> ResidualAdd:
    return ResidualAdd(placement=placement, projected=False, skip_ms=1.0, branch_ms=0.5, add=0)


def profile(forward: Moments, backward: Moments, **changes: Any) -> Profile:
    blocks = tuple(block(f"layers.{i}", f, b) for i, (f, b) in enumerate(zip(forward, backward, strict=True)))
    plain: dict[str, Any] = {
        "model": "Sequential",
        "loss": 0.6931,
        "training": True,
        "optimizer": Optimizer(name="Adam", groups=(), steps=0),
        "parameters": 241_794,
        "trainable": 241_794,
        "streams": (Stream(input="x", blocks=len(blocks)),),
        "blocks": blocks,
        "jumps": (),
        "anomalies": (),
        "backward_ran": True,
    }
    return Profile(**{**plain, **changes})


def finding(code: str = "B201", **changes: Any) -> Finding:
    plain: dict[str, Any] = {
        "code": code,
        "name": "gradient-decay",
        "severity": "error",
        "where": "layers.58 … layers.0",
        "message": "the gradient keeps 0.154 of its power a block: 8.03e-48 of what leaves layers.58 reaches layers.0, "
        "58 blocks earlier",
        "evidence": {"gain_per_block": 0.154},
    }
    return Finding(**{**plain, **changes})


def coverage(*gaps: Gap) -> Coverage:
    return Coverage(ops=121, ops_known=121, values=120, forward=120, backward=119, gaps=gaps)


def report(
    shape: Profile,
    *findings: Finding,
    verdict: str = "fails",
    seen: Coverage | None = None,
    target: str = "",
) -> Report:
    return Report(
        leadline="0.1.0",
        verdict=verdict,
        findings=findings,
        profile=shape,
        coverage=seen or coverage(),
        target=target,
    )


def step(**changes: Any) -> Update:
    """One step of Adam that lowers the loss by a fifth of the predicted change."""
    plain: dict[str, Any] = {
        "optimizer": "Adam",
        "steps": 0,
        "lr": 1e-3,
        "loss": 0.7,
        "predicted_loss_change": -0.1,
        "measured_loss_change": -0.02,
        "ratio": 0.2,
        "loss_resolution": 1e-7,
        "function_change": 0.1,
        "function_change_relative": 0.1,
        "function_response": None,
        "blocks_response": None,
        "grad_square": 1.0,
        "update_norm": 0.1,
        "weight_norm": 10.0,
        "line": (),
        "parting": 0.4,
        "parting_is_bound": False,
        "sharpness": None,
        "sharpness_kind": None,
        "stability_lr": 7e-4,
        "safe_lr": 4e-4,
        "warmup_steps": 2000,
        "confidence": "medium",
        "confidence_why": "measured along the step only",
        "parameters": (),
        "blocks": (),
        "ranges": (DepthRange(first="layers.0", last="layers.29", blocks=30, share=1.0),),
    }
    return Update(**{**plain, **changes})


def whole() -> Report:
    """Everything that a report can say: a step, a symmetry, theory that parts from measurement."""
    shape = profile(
        [1.0 + 0.1 * i for i in range(24)],
        [1e-5] * 24,
        update=step(),
        symmetry=Symmetry(
            generators=(
                Generator(exponents={"a.weight": 1, "b.weight": -1}, says="a.weight against b.weight"),
            ),
            tensors=(ScaledTensor(name="a.weight", kind="matrix", count=9, inert=True),),
            decayed=True,
            penalty=100.0,
            least=64.0,
            eps=(),
            held=(),
        ),
        theory=Theory(
            ops=48,
            with_rule=46,
            without={"fft": 2},
            anchored=(),
            forward=Agreement(ops=46, median=0.07, p90=0.2),
            backward=Agreement(ops=46, median=2.7, p90=3.0),
            forward_parting=None,
            backward_parting=Parting(
                direction="backward",
                op=7,
                name="matmul",
                module="layers.3",
                factor=0.4,
                inherited=None,
                band=0.3,
                assumption="samples are independent",
            ),
        ),
        depth_scale=DepthScale(chi=1.02, xi=50.0, phase="critical", trainable_depth=434.0),
    )
    found = finding(
        "U501", name="step-too-long", severity="warning", where="the optimizer", message="half of it is lost"
    )
    return report(shape, found, verdict="poor")


def forecast(**changes: Any) -> Forecast:
    """Three depths, one seed: the deeper, the lower the safe rate."""
    points = tuple(
        DepthPoint(
            depth=depth,
            seed=0,
            parameters=1,
            blocks=depth,
            loss=0.7,
            grad_square=1.0,
            loss_change=-0.1 * depth,
            function_change=0.1,
            total_loss_change=-0.1,
            total_function_change=None,
            ratio=0.9,
            parting=8 / depth,
            parting_is_bound=False,
            forward_e_folds=None,
            backward_e_folds=None,
            normalized=False,
        )
        for depth in (4, 8, 16)
    )
    plain: dict[str, Any] = {
        "model": "Sequential",
        "optimizer": "Adam",
        "lr": 1e-3,
        "depths": (4, 8, 16),
        "seeds": 1,
        "from_one_model": False,
        "points": points,
        "exponents": {"loss_change": Exponent(value=1.0, low=None, high=None, seeds=1, depths=(4, 8, 16))},
        "limits": (),
        "max_depth": 16,
        "max_depth_low": None,
        "max_depth_high": None,
        "safe_depth": 8,
        "advice": ("go no <deeper>",),
    }
    return Forecast(**{**plain, **changes})


def sick() -> Report:
    """Sixty blocks through which the gradient dies."""
    shape = profile(
        [0.3 * 0.95**i for i in range(60)],
        [2e-4 * 0.154 ** (59 - i) for i in range(60)],
        jumps=(Jump(direction="backward", block="layers.59", factor=0.0123),),
    )
    return report(shape, finding())


def healthy() -> Report:
    """Twenty-four pre-norm blocks in good order."""
    shape = profile([1 + i / 10 for i in range(24)], [1e-5] * 24)
    blocks = tuple(
        block(each.name, each.forward_ms, each.backward_ms, residual=residual()) for each in shape.blocks
    )
    return report(profile([], [], blocks=blocks, streams=shape.streams), verdict="trains")


def broken() -> Report:
    """Every kind of value that has no logarithm, two streams, many findings and gaps."""
    kinds = [1.0, None, float("nan"), float("inf"), 0.0, 2.0]
    encoder = tuple(block(f"encoder.{i}", value, value) for i, value in enumerate(kinds))
    decoder = tuple(block(f"decoder.{i}", 1.0, 1.0, stream=1, residual=residual("post")) for i in range(6))
    streams = (Stream(input="source", blocks=6, joins=1), Stream(input="target", blocks=6))
    gaps = [Gap(what=f"unknown op {i}", why="no rule in the op table", where=tuple("abc")) for i in range(6)]
    findings = [finding(code=f"F10{i}", severity=("info", "warning", "error")[i % 3]) for i in range(9)]
    shape = profile([], [], blocks=encoder + decoder, streams=streams, loss=float("nan"), optimizer=None)
    return report(shape, *findings, seen=coverage(*gaps))


def hostile(name: str = HOSTILE) -> Report:
    """Everything that has a name has this one, and there is much of it."""
    shape = profile(
        [],
        [],
        blocks=(block(name, 1.0, 1.0, residual=residual()),) * 30,
        streams=(Stream(input=name, blocks=30, joins=1), Stream(input=name, blocks=0)),
        model=name,
        optimizer=Optimizer(name=name, groups=(), steps=0),
        jumps=(Jump(direction="forward", block=name, factor=1e9),) * 5,
    )
    findings = [finding(where=name, message=name * 3) for _ in range(40)]
    gaps = [Gap(what=name, why=name, where=(name,) * 9) for _ in range(40)]
    sources = {"": Source(file=name, line=3)}
    made = report(shape, *findings, seen=coverage(*gaps))
    return replace(
        made, target=name, sources=sources, ignored=(finding(code="F101", where=name, message=name),)
    )


def thousand() -> Report:
    """A thousand blocks."""
    shape = profile([1.01**i for i in range(1000)], [0.99**i for i in range(1000)])
    return report(shape, finding())


def reviewed() -> Report:
    """A small model of a project: one new finding, one of the baseline, one below the bar and one that is ignored."""
    found = (
        finding(where="body.2 … body.0", evidence={"gain_per_block": 0.154, "start": float("nan")}),
        finding(
            code="F102",
            name="forward-decay",
            severity="warning",
            where="body.2",
            message="it fades",
            known=True,
        ),
        finding(code="N701", name="non-finite", severity="info", where="head", message="the loss is Inf"),
    )
    ignored = finding(
        code="F101", name="forward-growth", severity="warning", where="body.1", message="it grows"
    )
    rules = tuple(
        CheckRow(code=code, name=name, summary=f"About {name}.", page=page)
        for code, name, page in (
            ("B201", "gradient-decay", "About gradient-decay.\n\n## What it measures\nThe ratio $\\chi$."),
            ("B202", "gradient-explosion", ""),
            ("F101", "forward-growth", "About forward-growth."),
            ("F102", "forward-decay", "About forward-decay."),
            ("N701", "non-finite", "About non-finite."),
        )
    )
    made = report(profile([1.0, 0.5, 0.25, float("inf")], [0.0, None, 1e-3, 1.0]), *found)
    sources = {"": Source(file="src/nets.py", line=12), "body": Source(file="src/a b.py", line=3)}
    return replace(made, target="src/nets.py:make", rules=rules, ignored=(ignored,), sources=sources)


def rate_scan(**changes: Any) -> RateScan:
    """A scan of five rates; one step is lowest at 0.01, and not finite at the largest."""
    rates = tuple(10.0**power for power in range(-4, 1))
    fields = {
        "leadline": "1.0",
        "model": "Net",
        "optimizer": "SGD",
        "lr": 0.1,
        "loss": 2.0,
        "rates": rates,
        "losses": (2.0, 1.9, 1.5, 5.0, None),
        "predicted": tuple(2.0 - 50 * rate for rate in rates),
        "safe_lr": 0.01,
        **changes,
    }
    return RateScan(**fields)
