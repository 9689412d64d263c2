"""The table `[tool.leadline]` of pyproject.toml: how a project wants its models checked."""

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
from leadline.records import FailOn
from leadline.records.codec import read_text
from leadline.report.look import FORMAT_NAMES

FILE = "pyproject.toml"
CHOICES = {"fail-on": get_args(FailOn), "format": FORMAT_NAMES}
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
"""Every key, with an example of how to write it."""
TARGET_KEYS = ("select", "ignore", "fail-on")
"""Keys that may also be set for a single target, in [tool.leadline.targets."train.py:make_case"]."""
_KEY = re.compile(r"\$\.(?:per-target\[\.\.\.\]\.)?([\w-]+)")


class TargetConfig(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """The settings of one target; None means that the setting of the project applies."""

    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] | None = None
    fail_on: FailOn | None = None


class Config(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """The settings of a project. An option of `leadline check` with the same name takes precedence."""

    targets: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fail_on: FailOn = "warning"
    baseline: str | None = None
    format: str = "text"
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    device: str | None = None
    dtype: str | None = None
    per_target: dict[str, TargetConfig] = {}
    """Settings of single targets; in the file, `targets` is then a table of tables instead of a list."""


def find_config(start: Path) -> Path | None:
    """Return the nearest pyproject.toml, from `start` upwards, with a table [tool.leadline]; None if there is none."""
    paths = (folder / FILE for folder in (start, *start.parents))
    return next((path for path in paths if path.is_file() and _table(path) is not None), None)


def read_config(path: Path) -> Config:
    """Read [tool.leadline] of `path`. Paths in the file are relative to it; the Config has them relative to the working
    directory.
    """
    table = _table(path)
    if table is None:
        raise InputError(
            expected="a file with a table [tool.leadline]",
            got=f"{str(path)!r}, which has no such table",
            fix="add the table, even if it is empty",
        )
    _check_keys(table, EXAMPLES, "[tool.leadline]", path)
    _check_choices(table, path)
    try:
        config = msgspec.convert(_with_target_tables(table, path), Config)
    except msgspec.ValidationError as error:
        raise _mistyped(error, path) from None
    return _relative_to_working_directory(config, path.parent)


def _table(path: Path) -> Mapping[str, Any] | None:
    try:
        data = tomllib.loads(read_text(path, "a TOML file"))
    except (ValueError, RecursionError) as error:
        raise InputError(
            expected="a valid TOML file",
            got=f"{str(path)!r}: {error}",
            fix="correct the syntax of the file",
        ) from None
    tool = data.get("tool", {})
    table = tool.get("leadline") if isinstance(tool, dict) else None
    return table if isinstance(table, dict) else None


def _with_target_tables(table: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """Return the table with `targets` as a list and the settings of each target under `per-target`."""
    targets = table.get("targets", ())
    if not isinstance(targets, Mapping):
        return table
    for target, settings in targets.items():
        where = f'[tool.leadline.targets."{target}"]'
        if not isinstance(settings, Mapping):
            raise InputError(
                expected=f"a table {where}",
                got=f"{settings!r} in {path}",
                fix="write the settings of the target as keys of that table",
            )
        _check_keys(settings, TARGET_KEYS, where, path)
        _check_choices(settings, path)
    return {**table, "targets": tuple(targets), "per-target": dict(targets)}


def _check_keys(table: Mapping[str, Any], known: Iterable[str], where: str, path: Path) -> None:
    for key in table:
        if key not in known:
            raise InputError(
                expected=f"only these keys in {where}: {', '.join(known)}",
                got=f"{key!r} in {path}",
                fix=_suggestion(key, known) or "remove this key",
            )


def _check_choices(table: Mapping[str, Any], path: Path) -> None:
    for key, choices in CHOICES.items():
        _check_choice(key, table.get(key, choices[0]), choices, path)


def _check_choice(key: str, value: object, choices: Sequence[str], path: Path) -> None:
    if value not in choices:
        raise InputError(
            expected=f"{key} to be one of {', '.join(choices)}",
            got=f"{value!r} in [tool.leadline] of {path}",
            fix=_suggestion(str(value), choices) or f"write for example {EXAMPLES[key]}",
        )


def _mistyped(error: msgspec.ValidationError, path: Path) -> InputError:
    match = _KEY.search(str(error))
    key = match[1] if match and match[1] in EXAMPLES else "targets"
    return InputError(
        expected=f"a value of the right type for {key} in [tool.leadline]",
        got=f"in {path}: {error}",
        fix=f"write for example {EXAMPLES[key]}",
    )


def _suggestion(misspelled: str, names: Iterable[str]) -> str:
    close = get_close_matches(misspelled.lower(), list(names), n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else ""


def _relative_to_working_directory(config: Config, folder: Path) -> Config:
    baseline = None if config.baseline is None else os.path.relpath(folder / config.baseline)
    return replace(
        config,
        baseline=baseline,
        targets=tuple(_target(spec, folder) for spec in config.targets),
        per_target={_target(spec, folder): settings for spec, settings in config.per_target.items()},
    )


def _target(spec: str, folder: Path) -> str:
    """Return the target as named from the working directory; the name of one in a module stays the same."""
    place, colon, attribute = spec.rpartition(":")
    is_file = colon and (folder / place).is_file()
    return f"{os.path.relpath(folder / place)}:{attribute}" if is_file else spec
