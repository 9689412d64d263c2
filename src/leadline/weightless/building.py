"""A model built without weights, and what its initialisers would have made of each parameter and buffer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch import Tensor, nn

from leadline.tracing.census import Named, take_census
from leadline.weightless.law import Law, Source
from leadline.weightless.session import Session

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Initial:
    """Moments of one tensor's elements over the randomness of its initialiser; exact, or not there."""

    mean: float | None
    ms: float | None
    how: str
    """In words: "normal(0, 0.02) then x 0.0417"; "" if it could not be followed."""
    gap: str = ""
    """Why it could not be followed."""
    clone_of: str = ""
    """An earlier tensor made of the same random numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitLog:
    """By name, in the model's order; a tied tensor stands under its first name."""

    parameters: Mapping[str, Initial]
    buffers: Mapping[str, Initial]


@dataclass(frozen=True, slots=True, kw_only=True)
class Built(Generic[T]):
    """What a factory returned, on tensors without memory; they belong to `session`."""

    made: T
    session: Session

    def log(self, model: nn.Module) -> InitLog:
        """What happened to the parameters and buffers of a model that was built here."""
        census = take_census(model)
        seen: dict[Source, str] = {}
        return InitLog(
            parameters=_read(self.session, census.parameters, seen),
            buffers=_read(self.session, census.buffers, seen),
        )


def build_without_weights(factory: Callable[[], T]) -> Built[T]:
    """Run a constructor on tensors that have no memory, following what it would write into them.

    Nothing is allocated and no random number is drawn: generators, defaults and the classes themselves are as before.
    """
    session = Session()
    with session.active(laws=True):
        return Built(made=factory(), session=session)


def _read(session: Session, named: Mapping[int, Named[Any]], seen: dict[Source, str]) -> dict[str, Initial]:
    return {each.names[0]: _initial(session, each.item, each.names[0], seen) for each in named.values()}


def _initial(session: Session, tensor: Tensor, name: str, seen: dict[Source, str]) -> Initial:
    sources = session.memory.sources(tensor)
    clone_of = next((seen[source] for source in sources if source in seen), "")
    for source in sources:
        seen.setdefault(source, name)
    known = session.law(tensor)
    if isinstance(known, Law):
        return Initial(mean=known.mean, ms=known.ms, how=known.how, clone_of=clone_of)
    return Initial(mean=None, ms=None, how="", gap=known.why, clone_of=clone_of)
