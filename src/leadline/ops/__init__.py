"""The op table: the one place that knows what an op is. Keyed by canonical name, so that saved traces can be read.

An op the table does not know is reported as such (coverage); it is never taken for a harmless one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Literal

from leadline.collect import collect
from leadline.ops.family import Family

__all__ = ["IN_PLACE_OPERATORS", "Family", "Role", "canonical", "family_of", "resolve"]

Role = Literal["signal", "parameter", "constant"]

_ALIASES = {
    "true_divide": "div",
    "truediv": "div",
    "rtruediv": "div",
    "divide": "div",
    "rdiv": "div",
    "floordiv": "floor_divide",
    "multiply": "mul",
    "rmul": "mul",
    "subtract": "sub",
    "radd": "add",
    "rmatmul": "matmul",
    "negative": "neg",
    "rpow": "pow",
    "mod": "remainder",
    "absolute": "abs",
    "swish": "silu",
    "log_sigmoid": "logsigmoid",
    "special_expit": "sigmoid",
    "special_gammaln": "lgamma",
    "special_psi": "digamma",
    **{
        f"special_{name}": name
        for name in (
            *("digamma", "erf", "erfc", "erfinv", "exp2", "expm1", "log1p", "logit", "logsumexp"),
            *("log_softmax", "sinc", "softmax", "xlogy"),
        )
    },
    "linalg_vector_norm": "vector_norm",
    "linalg_norm": "norm",
    "frobenius_norm": "norm",
    "greater": "gt",
    "less": "lt",
    "not_equal": "ne",
    "greater_equal": "ge",
    "less_equal": "le",
}
IN_PLACE_OPERATORS = {
    f"i{name}"
    for name in ("add", "sub", "mul", "truediv", "floordiv", "pow", "matmul", "mod", "and", "or", "xor")
}


def canonical(spelling: str) -> str:
    """The op's own name, however it was spelled: `add`, `add_`, `__iadd__` and `__radd__` are all "add"."""
    name = spelling.strip("_")
    if name in IN_PLACE_OPERATORS and spelling.startswith("__"):
        name = name[1:]
    return _ALIASES.get(name, name)


def family_of(name: str) -> Family | None:
    """The family of a canonical name; None if the table does not know it."""
    return _table().get(name)


def resolve(name: str, roles: Sequence[Role]) -> str | None:
    """The kind of one executed op, which for sums and products depends on what it reads.

    `roles` says of each tensor operand whether it carries the batch's signal, is made of parameters only, or neither.
    `x @ W` is a weight, `q @ k` a product; `x * gamma` or `x * 0.5` is a scale, `a * b` a product;
    `x + f(x)` is an add, `x + bias` a bias.
    """
    family = family_of(name)
    if family is None:
        return None
    signals = roles.count("signal")
    if family.kind == "matmul":
        return "weight" if signals == 1 and "parameter" in roles else "product"
    if family.kind == "multiply":
        return "product" if signals > 1 else "scale"
    if family.kind == "add":
        return "add" if signals > 1 else "bias"
    return family.kind


@cache
def _table() -> dict[str, Family]:
    table: dict[str, Family] = {}
    for family in collect(sys.modules[__name__], Family):
        for name in family.names:
            if name in table:
                raise ValueError(f"two families own the op {name!r}: {table[name].kind} and {family.kind}")
            table[name] = family
    return table
