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
from leadline.report.formats import FORMATS
from leadline.report.look import Bar

FILE = "pyproject.toml"
CHOICES = {"fail-on": get_args(Bar), "format": tuple(FORMATS)}
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
_KEY = re.compile(r"\$\.([\w-]+)")


class Config(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """The settings of a project. Each is also an option of `leadline check`, which then replaces it."""

    targets: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fail_on: Bar = "warning"
    baseline: str | None = None
    format: str = "text"
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    device: str | None = None
    dtype: str | None = None


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
    _check_keys(table, path)
    for key, choices in CHOICES.items():
        _check_choice(key, table.get(key, choices[0]), choices, path)
    try:
        config = msgspec.convert(table, Config)
    except msgspec.ValidationError as error:
        raise _mistyped(error, path) from None
    return _from_here(config, path.parent)


def _table(path: Path) -> Mapping[str, Any] | None:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            expected="a TOML file that can be read", got=f"{str(path)!r}: {error}", fix="correct the file"
        ) from None
    tool = data.get("tool", {})
    table = tool.get("leadline") if isinstance(tool, dict) else None
    return table if isinstance(table, dict) else None


def _check_keys(table: Mapping[str, Any], path: Path) -> None:
    for key in table:
        if key not in EXAMPLES:
            raise InputError(
                expected=f"keys of [tool.leadline]: {', '.join(EXAMPLES)}",
                got=f"{key!r} in {path}",
                fix=_suggestion(key, EXAMPLES) or "remove it",
            )


def _check_choice(key: str, value: object, choices: Sequence[str], path: Path) -> None:
    if value not in choices:
        raise InputError(
            expected=f"{key} to be one of {', '.join(choices)}",
            got=f"{value!r} in [tool.leadline] of {path}",
            fix=_suggestion(str(value), choices) or f"write for instance {EXAMPLES[key]}",
        )


def _mistyped(error: msgspec.ValidationError, path: Path) -> InputError:
    found = _KEY.search(str(error))
    key = found[1] if found else "targets"
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
    return replace(config, baseline=baseline, targets=tuple(_target(each, folder) for each in config.targets))


def _target(spec: str, folder: Path) -> str:
    """The target as it is called from the working directory; one in a module is called the same from everywhere."""
    place, colon, attribute = spec.rpartition(":")
    is_file = colon and (folder / place).is_file()
    return f"{os.path.relpath(folder / place)}:{attribute}" if is_file else spec
