"""What the pass did not show, grouped by reason. Silence must never read as zero."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leadline.records import Gap, Module, Op, Parameter, Value


def find_gaps(
    ops: Sequence[Op], values: Sequence[Value], parameters: Sequence[Parameter], modules: Sequence[Module]
) -> list[Gap]:
    """Everything one would expect in the trace and does not find there."""
    found = (
        *_module_gaps(modules, parameters),
        *_parameter_gaps(parameters),
        (
            "ops the op table does not know",
            "measured, but no rule reads them",
            [op.callable for op in ops if op.kind is None],
        ),
        *_unmeasured("values not measured", [(value.unobserved, _place(value, ops)) for value in values]),
        *_unmeasured("parameters not measured", [(each.unobserved, each.name) for each in parameters]),
    )
    return [Gap(what=what, why=why, where=tuple(dict.fromkeys(where))) for what, why, where in found if where]


Found = tuple[str, str, list[str]]


def _module_gaps(modules: Sequence[Module], parameters: Sequence[Parameter]) -> Iterator[Found]:
    """A module may go uncalled because the pass missed it, or because another one used its parameters directly."""
    owners = {parameter.name.rpartition(".")[0] for parameter in parameters if parameter.used}
    uncalled = [module.path for module in modules if module.calls == 0 and not module.container]
    silent = [path for path in uncalled if path not in owners]
    bypassed = [path for path in uncalled if path in owners]
    yield "modules never called", "the pass did not reach them", silent
    yield (
        "modules whose parameters were used without calling them",
        "seen at the ops that read the parameters",
        bypassed,
    )


def _parameter_gaps(parameters: Sequence[Parameter]) -> Iterator[Found]:
    used = [parameter for parameter in parameters if parameter.used and not parameter.unobserved]
    gradless = [parameter.name for parameter in used if parameter.trainable and parameter.grad_norm is None]
    frozen = [parameter.name for parameter in used if not parameter.trainable]
    unused = [parameter.name for parameter in parameters if not parameter.used]
    yield "parameters not used", "no op of the pass read them", unused
    yield "trainable parameters without gradient", "the loss does not depend on them", gradless
    yield "frozen parameters", "requires_grad is False", frozen


def _unmeasured(what: str, reasons: Sequence[tuple[str, str]]) -> Iterator[Found]:
    for why in dict.fromkeys(why for why, _ in reasons if why):
        yield what, why, [place for reason, place in reasons if reason == why]


def _place(value: Value, ops: Sequence[Op]) -> str:
    if value.op is None:
        return value.name or f"value {value.id}"
    op = ops[value.op]
    return f"{op.module}:{op.name}" if op.module else op.name
