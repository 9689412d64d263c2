"""A small run file, everything that reads one, and ways to spoil it."""

from __future__ import annotations

import io
import sqlite3
from array import array
from collections.abc import Callable
from functools import cache
from pathlib import Path

from hypothesis import strategies as st

from leadline.monitor.live.messages import window_message
from leadline.monitor.live.run_list import LiveRun, PageCursor
from leadline.monitor.live.stored_checks import depth_profiles, static_report
from leadline.monitor.past_run import judge_run
from leadline.monitor.runfile import Run, Writer
from leadline.monitor.runfile.export import layer_table, scalar_table, to_csv, to_jsonl
from leadline.monitor.runfile.summary import summarize
from leadline.records import spell
from leadline.records.run import Alert, Event, RunInfo
from leadline.report.formats import FORMATS
from leadline.report.look import Look
from tests.support import reports as samples

INFO = RunInfo(model="Net", parameters=10, budget=0.01)
COLUMNS = {
    "run": ("key", "value"),
    "axis": ("name", "labels"),
    "metric": ("id", "name", "axis"),
    "step": ("step", "time"),
    "entry": ("seq", "metric", "step", "value"),
    "note": ("seq", "kind", "step", "body"),
}
VALUES = (
    None, 0, -1, 1, 2**62, 2**63 - 1, -(2**63), 0.5, 1e308, -1e308, float("inf"), 5e-324, "", "x", "NaN", "alert",
    "event", "report", "info", "writer", "blocks", "loss", b"", b"\0\1\2\3", b"\xff" * 7, "\x1b[2J\u202e", "{}", "[]",
    "[[", "null", "1" * 5000, '{"a":' * 3000, '["a"]', "z" * 200_000,
)  # fmt: skip
ENDLESS = (
    "WITH RECURSIVE n(step, time) AS (SELECT 1, 1.0 UNION ALL SELECT step + 1, 1.0 FROM n) SELECT * FROM n"
)
STRUCTURES = (
    f"DROP TABLE step; CREATE VIEW step AS {ENDLESS}",
    "DROP TABLE {0}; CREATE TABLE {0} (a, b, c)",
    "DROP TABLE {0}; CREATE VIRTUAL TABLE {0} USING fts5(a, b)",
    "CREATE TRIGGER t AFTER INSERT ON {0} BEGIN DELETE FROM run; END",
    "CREATE VIEW v AS SELECT * FROM {0}",
    "CREATE INDEX i ON {0} (random())",
    "DELETE FROM {0}",
    "PRAGMA user_version = 2",
    "PRAGMA application_id = 7",
)


@cache
def good(place: Path) -> bytes:
    """The content of a sound file with a little of everything."""
    path = place / "good.leadline"
    with Writer(path, INFO) as writer:
        writer.axis("blocks", ["a", "b"])
        for step in range(4):
            scalars = {"loss": 2.0 - step, "step_seconds": 0.1, "watch_seconds": 0.001}
            writer.put(step, scalars, {"grad_norm": ("blocks", array("f", [1.0, 2.0]))})
        alert = Alert(code="T801", name="spike", severity="error", message="m", since=1, step=2)
        writer.alert(alert)
        writer.event(Event(step=3, time=1.0, kind="warning", message="m"))
        writer.report(2, samples.whole().to_json())
    return path.read_bytes()


def spoil(path: Path, changes: list[tuple[str, ...]]) -> None:
    """Change cells or structure; what SQLite itself refuses is left out."""
    connection = sqlite3.connect(path, isolation_level=None)
    for change in changes:
        try:
            if change[0] == "structure":
                connection.executescript(change[1])
            else:
                table, column, value, row = change[1:]
                picked = (
                    f"(SELECT rowid FROM {table} LIMIT 1 OFFSET {row})"
                    if table not in ("run", "axis")
                    else "rowid"
                )
                where = f" WHERE rowid = {picked}" if table not in ("run", "axis") else ""
                connection.execute(f"UPDATE OR REPLACE {table} SET {column} = ?{where}", (value,))
        except (sqlite3.Error, OverflowError):
            continue
    connection.close()


CELLS = st.sampled_from(
    [(table, column) for table, columns in COLUMNS.items() for column in columns]
).flatmap(
    lambda place: st.tuples(
        st.just("cell"), st.just(place[0]), st.just(place[1]), st.sampled_from(VALUES), st.integers(0, 3)
    )
)
SHAPES = st.tuples(
    st.just("structure"),
    st.builds(str.format, st.sampled_from(STRUCTURES), st.sampled_from(sorted(COLUMNS))),
)
CHANGES = st.lists(CELLS | CELLS | CELLS | SHAPES, min_size=1, max_size=3)


def _show(path: Path) -> None:
    run = LiveRun(path)
    try:
        spell(run.update(PageCursor()))
    finally:
        run.close()


def _with_run(read: Callable[[Run], object]) -> Callable[[Path], None]:
    def reading(path: Path) -> None:
        with Run(path) as run:
            read(run)

    return reading


def _judge(run: Run) -> None:
    report = judge_run(run)
    for form in ("text", "json", "html"):
        FORMATS[form]([report], Look())


def _resume(path: Path) -> None:
    with Writer(path, INFO) as writer:
        writer.put(9, {"loss": 1.0})


READERS: dict[str, Callable[[Path], None]] = {
    "list": lambda path: [summarize(path)],
    "judge": _with_run(_judge),
    "export": _with_run(lambda run: to_csv(scalar_table(run), io.StringIO())),
    "export layers": _with_run(lambda run: to_jsonl(layer_table(run), io.StringIO())),
    "follow": _with_run(lambda run: run.since(0)),
    "show": _show,
    "zoom": _with_run(lambda run: spell(window_message(run, 0, 3))),
    "profiles": _with_run(lambda run: spell(depth_profiles(run, 2))),
    "moment": _with_run(lambda run: static_report(run, 2)),
    "resume": _resume,
}
