"""A run file can be read at any moment, and any other file is refused with a message."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import threading
from array import array
from pathlib import Path

import pytest

from leadline.errors import InputError, LeadlineError, SchemaError
from leadline.monitor.runfile import Run, Writer
from leadline.records.run import Alert, Event, RunInfo

INFO = RunInfo(model="Net", parameters=10)


def write(path: Path, steps: int = 300) -> Path:
    with Writer(path, INFO) as writer:
        writer.axis("blocks", ["a", "b"])
        for step in range(steps):
            writer.put(step, {"loss": 1.0}, {"grad_norm": ("blocks", array("f", range(100)))})
    return path


def read_all(path: Path) -> None:
    with Run(path) as run:
        _ = run.info, run.axes, run.metrics, run.steps, run.is_live, run.reports, run.alerts(), run.events()
        for name in run.scalar_names:
            run.scalars(name)
        for name in run.vector_axes:
            run.vectors(name)
        run.since(0)


WRITER = """
import sys
from array import array
from leadline.records.run import RunInfo
from leadline.monitor.runfile import Writer
writer = Writer(sys.argv[1], RunInfo(model="Net", parameters=10))
writer.put(0, {"loss": 0.0})
writer.flush()
print("ready", flush=True)
for step in range(1, 3000):
    writer.put(step, {"loss": float(step), "lr": 0.1}, {"grad_norm": ("blocks", array("f", [step] * 50))})
    if step % 10 == 0:
        writer.flush()
writer.close()
"""


def test_a_reader_that_follows_by_cursor_sees_every_step_once_while_another_process_writes(tmp_path):
    path = tmp_path / "a.leadline"
    command = [sys.executable, "-c", WRITER, str(path)]
    seen: dict[str, list[int]] = {"loss": [], "grad_norm": []}
    looks, cursor = 0, 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with Run(path) as run:
            ended = False
            while not ended:
                ended = child.poll() is not None
                changes = run.since(cursor)
                assert changes.cursor >= cursor
                looks, cursor = looks + bool(changes.scalars), changes.cursor
                seen["loss"] += changes.scalars.get("loss", ([], []))[0]
                seen["grad_norm"] += changes.vectors.get("grad_norm", ([], []))[0]
    assert child.returncode == 0
    assert seen == {"loss": list(range(3000)), "grad_norm": list(range(1, 3000))}
    assert looks > 1  # it did read in between


def test_threads_may_share_a_run(tmp_path):
    path = write(tmp_path / "a.leadline")
    failures: list[Exception] = []

    def look() -> None:
        try:
            for _ in range(20):
                assert len(run.since(0).scalars["loss"][0]) == len(run.steps) == 300
        except Exception as error:
            failures.append(error)

    with Run(path) as run:
        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []


def test_numbers_that_are_written_again_come_after_the_cursor(tmp_path):
    with Writer(tmp_path / "a.leadline", INFO) as writer, Run(tmp_path / "a.leadline") as run:
        writer.put(0, {"loss": 1.0})
        writer.flush()
        cursor = run.cursor
        writer.put(0, {"loss": 2.0})
        writer.event(Event(step=0, time=1.0, kind="sample", message="traced"))
        writer.alert(Alert(code="T801", name="x", severity="info", message="m", since=0, step=0))
        writer.report(0, "{}")
        writer.flush()
        changes = run.since(cursor)
        assert changes.cursor == run.cursor
        assert changes.scalars == {"loss": ([0], [2.0])}
        assert [event.kind for event in changes.events] == ["warning", "sample"]
        assert [alert.code for alert in changes.alerts] == ["T801"]
        assert changes.reports == (0,)


def test_an_unknown_metric_is_refused_with_the_known_ones(tmp_path):
    with Run(write(tmp_path / "a.leadline", 1)) as run:
        with pytest.raises(InputError, match="one of the run's scalars: loss"):
            run.scalars("grad_norm")
        with pytest.raises(InputError, match="one of the run's vectors: grad_norm"):
            run.vectors("loss")
        with pytest.raises(InputError, match="a step with a report: none"):
            run.report(0)


def make_foreign(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE cats (name)")
    connection.close()


def change(statement: str, path: Path) -> None:
    with sqlite3.connect(write(path)) as connection:
        connection.execute(statement)
    connection.close()


def cut(path: Path) -> None:
    content = write(path).read_bytes()
    path.write_bytes(content[: len(content) // 2])


BAD = {
    "missing": (lambda path: None, InputError, "no such file"),
    "a directory": (Path.mkdir, InputError, "a directory"),
    "empty": (Path.touch, SchemaError, "is empty"),
    "text": (lambda path: path.write_text("loss,step\n" * 500), SchemaError, "not a SQLite database"),
    "another database": (make_foreign, SchemaError, "not a run file of leadline"),
    "newer": (lambda path: change("PRAGMA user_version = 9", path), SchemaError, "version 9.*Upgrade"),
    "cut short": (cut, SchemaError, "damaged"),
    "without a table": (lambda path: change("DROP TABLE note", path), SchemaError, "no table 'note'"),
    "without info": (
        lambda path: change("DELETE FROM run", path),
        SchemaError,
        "no information about its run",
    ),
    "info damaged": (lambda path: change("UPDATE run SET value = '{]'", path), SchemaError, "damaged"),
    "info of another kind": (
        lambda path: change("UPDATE run SET value = '[]'", path),
        SchemaError,
        "damaged",
    ),
    "vector damaged": (
        lambda path: change("UPDATE entry SET value = x'010203'", path),
        SchemaError,
        "damaged",
    ),
    "number damaged": (lambda path: change("UPDATE entry SET value = 'abc'", path), SchemaError, "damaged"),
    "labels damaged": (lambda path: change("UPDATE axis SET labels = '[1'", path), SchemaError, "damaged"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_damaged_file_is_refused_with_the_reason(tmp_path, case):
    make, kind, words = BAD[case]
    make(tmp_path / "a.leadline")
    with pytest.raises(kind, match=f"(?s){words}"):
        read_all(tmp_path / "a.leadline")


WRITABLE = {"missing", "empty", "vector damaged", "number damaged", "labels damaged"}


@pytest.mark.parametrize("case", [case for case in BAD if case not in WRITABLE])
def test_a_writer_refuses_it_too_and_leaves_it_unchanged(tmp_path, case):
    path = tmp_path / "a.leadline"
    BAD[case][0](path)
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(LeadlineError):
        Writer(path, INFO)
    assert (path.read_bytes() if path.is_file() else b"") == before


def test_a_file_with_any_bytes_changed_is_read_or_refused_never_a_crash(tmp_path):
    good = write(tmp_path / "good").read_bytes()
    dice = random.Random(0)
    refused = 0
    for attempt in range(150):
        path = tmp_path / f"{attempt}"
        content = bytearray(good)
        for _ in range(dice.choice([1, 20, 400])):
            content[dice.randrange(len(content) if attempt % 2 else 4096)] = dice.randrange(256)
        path.write_bytes(content)
        try:
            read_all(path)
        except LeadlineError:
            refused += 1
    assert refused > 10  # the changes do reach what is read


LOOK = """
import json, os, sys
from leadline.monitor.runfile import Run
if os.getuid() == 0:
    os.setuid(65534)
print(json.dumps(Run(sys.argv[1]).steps))
"""


def look_as_nobody(path: Path) -> subprocess.CompletedProcess[str]:
    """Unmeasured by coverage, which would have to write a file as well."""
    command = [sys.executable, "-c", LOOK, str(path)]
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=quiet)


def test_a_killed_run_is_readable_in_a_read_only_folder(reachable):
    """Its log is still there, and SQLite would have to create a file to read it."""
    path = reachable / "a.leadline"
    code = WRITER.replace('print("ready", flush=True)', "import os; os._exit(0)")
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    assert (reachable / "a.leadline-wal").exists()
    (reachable / "a.leadline-shm").unlink()
    reachable.chmod(0o555)
    done = look_as_nobody(path)
    assert (done.stdout, done.stderr) == ("[0]\n", "")


@pytest.mark.parametrize("closed", ["file", "folder"])
def test_a_file_without_permission_is_reported(reachable, closed):
    path = write(reachable / "in" / "a.leadline", 1)
    (path if closed == "file" else path.parent).chmod(0o000)
    done = look_as_nobody(path)
    path.parent.chmod(0o755)
    assert "InputError" in done.stderr
    assert "permission" in done.stderr.lower()
