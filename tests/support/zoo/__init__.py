"""The test zoo: tiny real models, each of which has broken some tool. `ZOO` maps names to recipes."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet

from leadline.collect import collect
from tests.support.zoo.specimen import Specimen, energy

__all__ = ["ZOO", "Specimen", "animals", "energy"]

ZOO: dict[str, Specimen] = {each.name: each for each in collect(sys.modules[__name__], Specimen)}


def animals(*names: str, without: Iterable[str] = ()) -> list[ParameterSet]:
    """Parameters for `pytest.mark.parametrize`: these specimens (or all), except those with a trait in `without`.

    Each brings the filters for the warnings it causes, so that every other warning still is an error.
    """
    chosen = [ZOO[name] for name in names] if names else list(ZOO.values())
    banned = set(without)
    return [
        pytest.param(each, id=each.name, marks=[pytest.mark.filterwarnings(text) for text in each.warns])
        for each in chosen
        if not banned & each.traits
    ]
