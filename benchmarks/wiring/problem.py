"""What a planted bug is: a training program, what is wrong with it, and what a finding about it must say."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from leadline import Case

Part = Literal["calibration", "held out", "second set", "third set", "fourth set", "fifth set", "sixth set"]
Build = Callable[[str], Case]
"""Builds the program with the bug of this name; "" is the healthy twin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One mistake in a program, and the finding that names it."""

    name: str
    expected: tuple[str, ...]
    """Names of findings, each of which is right."""
    says: tuple[str, ...] = ()
    """Words of which the finding must contain all, as its place or in its message: tensor, axis, position, module."""
    note: bool = False
    """The program may be meant like this, so a note is enough and a warning would be too much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One training program with its bugs; without any of them it is their healthy twin."""

    name: str
    network: str
    """The kind of network."""
    bugs: tuple[Bug, ...]
    build: Build
    part: Part
    """All bugs of a program and their twin are in the same part."""

    @property
    def half(self) -> Part:
        """One of the two halves of its set, by its name."""
        return _half(self.name)

    def case(self, bug: str = "") -> Case:
        """The program with this bug, from the same random numbers each time."""
        torch.manual_seed(zlib.crc32(self.name.encode()))
        return self.build(bug)


def bug(name: str, expected: str, *says: str, note: bool = False) -> Bug:
    """A bug whose finding has one of the names in `expected`, which are separated by " or "."""
    return Bug(name=name, expected=tuple(expected.split(" or ")), says=says, note=note)


PROBLEMS: dict[str, Problem] = {}


def problem(name: str, network: str, *bugs: Bug, part: Part | None = None) -> Callable[[Build], Build]:
    """Register the program that the decorated function builds. Without a part, its name decides about the half."""

    def register(build: Build) -> Build:
        if name in PROBLEMS or len({each.name for each in bugs}) < len(bugs):
            raise ValueError(f"two problems or two bugs of one problem are called the same: {name}")
        PROBLEMS[name] = Problem(name=name, network=network, bugs=bugs, build=build, part=part or _half(name))
        return build

    return register


def _half(name: str) -> Part:
    """One bit of a hash of the name."""
    return "held out" if hashlib.sha256(name.encode()).digest()[0] & 1 else "calibration"
