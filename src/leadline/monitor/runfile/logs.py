"""Plain logs as samples: a CSV file, or the events of TensorBoard. Columns are known by their names."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from leadline.errors import InputError
from leadline.records.run import Sample

EVENTS = "tfevents"  # in the name of every file that TensorBoard writes

# What a column may be called, the best first; `_plain` has taken "train", case and punctuation away.
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
    """A file that `read_log` reads, by its name; or a folder with events of TensorBoard."""
    return path.suffix.lower() in (".csv", ".tsv") or EVENTS in path.name or bool(_event_files(path))


def read_log(path: Path, columns: Mapping[str, str]) -> list[Sample]:
    """The numbers of the log, a sample a step. `columns` says which column a metric is in, where names do not."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise InputError(
            expected="a log", got=f"{str(path)!r}, which is a pipe or a device", fix="name a file on a disk"
        )
    return [*_read_events(path, columns)] if _event_files(path) else [*_read_csv(path, columns)]


def _event_files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(each for each in path.iterdir() if EVENTS in each.name and each.is_file())
    return [path] if EVENTS in path.name else []


def _read_csv(path: Path, columns: Mapping[str, str]) -> Iterator[Sample]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = file.readline()
            delimiter = max(",;\t", key=header.count)
            names = next(csv.reader([header], delimiter=delimiter), [])
            chosen = choose(names, columns, str(path))
            yield from _joined(_rows(csv.reader(file, delimiter=delimiter), names, chosen, path))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            expected=f"a CSV file that can be read: {path}",
            got=getattr(error, "strerror", None) or str(error),
            fix="check the path, and that it is text in UTF-8",
        ) from None


def _rows(
    reader: Iterator[list[str]], names: Sequence[str], chosen: Mapping[str, str], path: Path
) -> Iterator[Sample]:
    places = {metric: names.index(column) for metric, column in chosen.items()}
    for index, row in enumerate(reader):
        cells = {metric: row[place].strip() for metric, place in places.items() if place < len(row)}
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


def _joined(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Neighbours of the same step as one: some loggers write a row for each part of a step."""
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


def choose(names: Sequence[str], columns: Mapping[str, str], path: str) -> dict[str, str]:
    """Metric to column: those that were told, and for the others the first alias that is there."""
    for metric, column in columns.items():
        if column not in names:
            raise InputError(
                expected=f"a column of {path}: {', '.join(map(repr, names)) or 'there are none'}",
                got=f"{metric}={column}",
                fix="choose one of these",
            )
    chosen = dict(columns)
    plain = {_plain(name): name for name in reversed(names)}  # of two that are alike, the first
    for metric, aliases in ALIASES.items():
        found = next((plain[alias] for alias in aliases if alias in plain), None)
        if metric not in chosen and found is not None:
            chosen[metric] = found
    if not set(chosen) - {"step"}:
        raise InputError(
            expected=f"a column that is called loss, grad_norm or lr in {path}",
            got=", ".join(map(repr, names)) or "no columns",
            fix="say which it is, for instance --column loss=NAME",
        )
    return chosen


def _plain(name: str) -> str:
    """`Train/Loss` and `training loss` as `loss`."""
    return _PREFIX.sub("", re.sub(r"[\W_]+", "_", name.strip().lower()).strip("_"))


def _read_events(path: Path, columns: Mapping[str, str]) -> Iterator[Sample]:
    found = _event_scalars(path)
    chosen = choose([*found], columns, str(path))
    merged: dict[int, dict[str, float]] = {}
    for metric, tag in chosen.items():
        for step, value in found[tag]:
            merged.setdefault(step, {})[metric] = value
    for step in sorted(merged):
        yield Sample(step=step, scalars=merged[step])


def _event_scalars(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Tag to steps and values, of every scalar in the files."""
    try:
        loader = import_module("tensorboard.backend.event_processing.event_accumulator")
        arrays = import_module("tensorboard.util.tensor_util")
    except ImportError:
        raise InputError(
            expected="the package tensorboard, which reads its own events",
            got="it is not installed",
            fix='pip install "leadline[tensorboard]", or export the log as CSV',
        ) from None
    everything = dict.fromkeys(("scalars", "tensors"), 0)
    log = loader.EventAccumulator(str(path), size_guidance=everything)
    log.Reload()
    found = {tag: [(each.step, each.value) for each in log.Scalars(tag)] for tag in log.Tags()["scalars"]}
    for tag in log.Tags()["tensors"]:
        values = [(each.step, arrays.make_ndarray(each.tensor_proto)) for each in log.Tensors(tag)]
        if all(value.size == 1 and value.dtype.kind in "fiu" for _, value in values):
            found[tag] = [(step, float(value.item())) for step, value in values]
    return found
