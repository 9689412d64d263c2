"""`[tool.leadline]` of pyproject.toml: how a project wants its models checked."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec
from msgspec.structs import replace

from leadline.errors import InputError
from leadline.records.codec import read_text
from leadline.report.formats import FORMATS
from leadline.report.layout import FailOn

FILE = "pyproject.toml"
CHOICES = {"fail-on": get_args(FailOn), "format": tuple(FORMATS)}
EXAMPLES = {
    "targets": 'targets = ["train.py:make_case"]',
    "select": 'select = ["F", "B201"]',
    "ignore": 'ignore = ["gradient-decay"]',
    "fail-on": 'fail-on = "error"',
    "baseline": 'baseline = "leadline-baseline.json"',
    "format": 'format = "github"',
    "seed": "seed = 0",
    "device": 'device = "cuda"',
    "dtype": 'dtype = "bfloat16"',
}
"""Every key, as it is to be written."""
OWN = ("select", "ignore", "fail-on")
"""Keys that a target may have for itself, in [tool.leadline.targets."train.py:make_case"]."""
_KEY = re.compile(r"\$\.(?:own\[\.\.\.\]\.)?([\w-]+)")


class Own(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """What one target wants otherwise; None: as the project does."""

    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] | None = None
    fail_on: FailOn | None = None


class Config(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """The settings of a project. Each is also an option of `leadline check`, which then replaces it."""

    targets: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fail_on: FailOn = "warning"
    baseline: str | None = None
    format: str = "text"
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    device: str | None = None
    dtype: str | None = None
    own: dict[str, Own] = {}
    """Settings of single targets: `targets` may be a table of tables instead of a list."""


def find_config(start: Path) -> Path | None:
    """The nearest pyproject.toml, from `start` upwards, that has a table [tool.leadline]."""
    paths = (folder / FILE for folder in (start, *start.parents))
    return next((path for path in paths if path.is_file() and _table(path) is not None), None)


def read_config(path: Path) -> Config:
    """The table of this file. Paths in it are relative to the file, and come out relative to the working directory."""
    table = _table(path)
    if table is None:
        raise InputError(
            expected="a file with a table [tool.leadline]",
            got=f"{str(path)!r}, which has none",
            fix="add the table, even if it is empty",
        )
    _check_keys(table, EXAMPLES, "[tool.leadline]", path)
    _check_choices(table, path)
    try:
        config = msgspec.convert(_with_own(table, path), Config)
    except msgspec.ValidationError as error:
        raise _mistyped(error, path) from None
    return _from_here(config, path.parent)


def _table(path: Path) -> Mapping[str, Any] | None:
    try:
        data = tomllib.loads(read_text(path, "a TOML file"))
    except (ValueError, RecursionError) as error:
        raise InputError(
            expected="a TOML file that can be read", got=f"{str(path)!r}: {error}", fix="correct the file"
        ) from None
    tool = data.get("tool", {})
    table = tool.get("leadline") if isinstance(tool, dict) else None
    return table if isinstance(table, dict) else None


def _with_own(table: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """The table with a list of targets, and apart from it what each of them wants for itself."""
    targets = table.get("targets", ())
    if not isinstance(targets, Mapping):
        return table
    for target, own in targets.items():
        where = f'[tool.leadline.targets."{target}"]'
        if not isinstance(own, Mapping):
            raise InputError(
                expected=f"a table {where}",
                got=f"{own!r} in {path}",
                fix="write the keys of the target below it",
            )
        _check_keys(own, OWN, where, path)
        _check_choices(own, path)
    return {**table, "targets": tuple(targets), "own": dict(targets)}


def _check_keys(table: Mapping[str, Any], known: Iterable[str], where: str, path: Path) -> None:
    for key in table:
        if key not in known:
            raise InputError(
                expected=f"keys of {where}: {', '.join(known)}",
                got=f"{key!r} in {path}",
                fix=_suggestion(key, known) or "remove it",
            )


def _check_choices(table: Mapping[str, Any], path: Path) -> None:
    for key, choices in CHOICES.items():
        _check_choice(key, table.get(key, choices[0]), choices, path)


def _check_choice(key: str, value: object, choices: Sequence[str], path: Path) -> None:
    if value not in choices:
        raise InputError(
            expected=f"{key} to be one of {', '.join(choices)}",
            got=f"{value!r} in [tool.leadline] of {path}",
            fix=_suggestion(str(value), choices) or f"write for instance {EXAMPLES[key]}",
        )


def _mistyped(error: msgspec.ValidationError, path: Path) -> InputError:
    found = _KEY.search(str(error))
    key = found[1] if found and found[1] in EXAMPLES else "targets"
    return InputError(
        expected=f"{key} of the right kind in [tool.leadline]",
        got=f"in {path}: {error}",
        fix=f"write for instance {EXAMPLES[key]}",
    )


def _suggestion(wanted: str, names: Iterable[str]) -> str:
    close = get_close_matches(wanted.lower(), list(names), n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else ""


def _from_here(config: Config, folder: Path) -> Config:
    baseline = None if config.baseline is None else os.path.relpath(folder / config.baseline)
    return replace(
        config,
        baseline=baseline,
        targets=tuple(_target(each, folder) for each in config.targets),
        own={_target(each, folder): own for each, own in config.own.items()},
    )


def _target(spec: str, folder: Path) -> str:
    """The target as it is called from the working directory; one in a module is called the same from everywhere."""
    place, colon, attribute = spec.rpartition(":")
    is_file = colon and (folder / place).is_file()
    return f"{os.path.relpath(folder / place)}:{attribute}" if is_file else spec
