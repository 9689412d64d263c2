"""Reading logs of other tools: CSV files and TensorBoard events, whose columns are recognized by name."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from leadline.errors import InputError, install_extra
from leadline.records.run import Sample

# Part of the name of every file that TensorBoard writes.
EVENT_FILE_MARK = "tfevents"

# Column names of each metric, the best first; `_normalize` removes "train", case and punctuation.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "step": ("step", "global_step", "steps", "iteration", "iter", "iterations"),
    "loss": ("loss", "loss_step", "loss_train", "total_loss"),
    "grad_norm": ("grad_norm", "gradient_norm", "global_grad_norm", "total_grad_norm", "grad_norm_total"),
    "lr": ("lr", "learning_rate"),
    "update_norm": ("update_norm",),
    "weight_norm": ("weight_norm", "param_norm"),
    "grad_clip": ("grad_clip",),
    "loss_scale": ("loss_scale", "grad_scale", "scale"),
    "step_seconds": ("step_seconds", "step_time"),
}
_PREFIX = re.compile(r"^(train(ing|er)?|optim|leadline)_")


def is_log(path: Path) -> bool:
    """True for a file name that `read_log` reads, or a folder with TensorBoard events."""
    return path.suffix.lower() in (".csv", ".tsv") or EVENT_FILE_MARK in path.name or bool(_event_files(path))


def read_log(path: Path, columns: Mapping[str, str]) -> list[Sample]:
    """Return one sample per step. `columns` names the column of a metric where its own name does not tell."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise InputError(
            expected="a log", got=f"{str(path)!r}, which is a pipe or a device", fix="name a file on a disk"
        )
    return [*_read_events(path, columns)] if _event_files(path) else [*_read_csv(path, columns)]


def _event_files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(each for each in path.iterdir() if EVENT_FILE_MARK in each.name and each.is_file())
    return [path] if EVENT_FILE_MARK in path.name else []


def _read_csv(path: Path, columns: Mapping[str, str]) -> Iterator[Sample]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = file.readline()
            delimiter = max(",;\t", key=header.count)
            names = next(csv.reader([header], delimiter=delimiter), [])
            chosen = choose_columns(names, columns, str(path))
            yield from _merge_steps(_rows(csv.reader(file, delimiter=delimiter), names, chosen, path))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            expected=f"a CSV file that can be read: {path}",
            got=getattr(error, "strerror", None) or str(error),
            fix="check the path, and save the file as UTF-8 text",
        ) from None


def _rows(
    reader: Iterator[list[str]], names: Sequence[str], chosen: Mapping[str, str], path: Path
) -> Iterator[Sample]:
    positions = {metric: names.index(column) for metric, column in chosen.items()}
    for index, row in enumerate(reader):
        cells = {
            metric: row[position].strip() for metric, position in positions.items() if position < len(row)
        }
        numbers = {
            metric: _number(text, chosen[metric], index + 2, path) for metric, text in cells.items() if text
        }
        step = numbers.pop("step", float(index))
        if not abs(step) < 2**53:
            raise _not_a_number(str(step), chosen["step"], index + 2, path)
        if numbers:
            yield Sample(step=int(step), scalars=numbers)


def _number(text: str, column: str, line: int, path: Path) -> float:
    try:
        return float(text)
    except ValueError:
        raise _not_a_number(text, column, line, path) from None


def _not_a_number(text: str, column: str, line: int, path: Path) -> InputError:
    return InputError(
        expected=f"numbers in column {column!r} of {path}",
        got=f"{text!r} in line {line}",
        fix="leave the cell empty, or name another column with --column",
    )


def _merge_steps(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Merge adjacent samples of the same step, because some loggers write several rows per step."""
    last: Sample | None = None
    for sample in samples:
        if last is not None and sample.step == last.step:
            last = Sample(step=last.step, scalars={**last.scalars, **sample.scalars})
            continue
        if last is not None:
            yield last
        last = sample
    if last is not None:
        yield last


def choose_columns(names: Sequence[str], columns: Mapping[str, str], path: str) -> dict[str, str]:
    """Return the column of each metric: the given ones, and the first matching alias for the others."""
    for metric, column in columns.items():
        if column not in names:
            raise InputError(
                expected=f"a column of {path}: {', '.join(map(repr, names)) or 'none'}",
                got=f"{metric}={column}",
                fix="choose one of these",
            )
    chosen = dict(columns)
    by_name = {_normalize(name): name for name in reversed(names)}  # the first of two equal names wins
    for metric, aliases in ALIASES.items():
        matches = [by_name[alias] for alias in aliases if alias in by_name]
        if metric not in chosen and matches:
            chosen[metric] = matches[0]
    if not set(chosen) - {"step"}:
        raise InputError(
            expected=f"a column named loss, grad_norm or lr in {path}",
            got=", ".join(map(repr, names)) or "no columns",
            fix="name the column, for instance with --column loss=NAME",
        )
    return chosen


def _normalize(name: str) -> str:
    """Return `loss` for `Train/Loss` and `training loss`."""
    return _PREFIX.sub("", re.sub(r"[\W_]+", "_", name.strip().lower()).strip("_"))


def _read_events(path: Path, columns: Mapping[str, str]) -> Iterator[Sample]:
    scalars = _event_scalars(path)
    chosen = choose_columns([*scalars], columns, str(path))
    merged: dict[int, dict[str, float]] = {}
    for metric, tag in chosen.items():
        for step, value in scalars[tag]:
            merged.setdefault(step, {})[metric] = value
    for step in sorted(merged):
        yield Sample(step=step, scalars=merged[step])


def _event_scalars(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Return steps and values of every scalar in the files, by tag."""
    try:
        loader = import_module("tensorboard.backend.event_processing.event_accumulator")
        arrays = import_module("tensorboard.util.tensor_util")
    except ImportError:
        raise InputError(
            expected="the package tensorboard, which reads event files",
            got="it is not installed",
            fix=f"{install_extra('tensorboard')}, or export the log as CSV",
        ) from None
    no_limit = dict.fromkeys(("scalars", "tensors"), 0)
    log = loader.EventAccumulator(str(path), size_guidance=no_limit)
    log.Reload()
    scalars = {tag: [(each.step, each.value) for each in log.Scalars(tag)] for tag in log.Tags()["scalars"]}
    for tag in log.Tags()["tensors"]:
        values = [(each.step, arrays.make_ndarray(each.tensor_proto)) for each in log.Tensors(tag)]
        if all(value.size == 1 and value.dtype.kind in "fiu" for _, value in values):
            scalars[tag] = [(step, float(value.item())) for step, value in values]
    return scalars
