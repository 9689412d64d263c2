"""Who races: a scheme with one rate for all parameters, or with the rates that its depth law gives to each of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from leadline.errors import InputError
from leadline.nn import SCHEMES
from leadline.nn.schemes import find_scheme

GROUPED = "+groups"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """`grouped`: each parameter has the rate that `leadline.nn.param_groups` gives it, times that of the race."""

    scheme: str
    grouped: bool


def find_entrant(name: str) -> Entrant:
    """`keel`, or `keel+groups`. Without a depth law groups would change nothing, and are refused."""
    scheme = name.removesuffix(GROUPED)
    row = find_scheme(scheme, 1)
    grouped = name != scheme
    if grouped and row.exponent is None:
        raise InputError(
            expected=f"{GROUPED} behind a scheme with a depth law: {', '.join(with_a_law(SCHEMES))}",
            got=name,
            fix=f"race {scheme}: its groups all have the same rate",
        )
    return Entrant(scheme=scheme, grouped=grouped)


def with_a_law(schemes: Iterable[str]) -> list[str]:
    return [name for name in schemes if SCHEMES[name].exponent is not None]


def every_entrant() -> tuple[str, ...]:
    """Every scheme, and those that have a depth law also with its groups."""
    return (*SCHEMES, *(name + GROUPED for name in with_a_law(SCHEMES)))
