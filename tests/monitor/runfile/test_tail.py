"""Steps between two transactions are in the tail, and none of them is lost or stored twice after a kill."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import time
from array import array
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from leadline.monitor.runfile import Run, Writer, write
from leadline.monitor.runfile.queue import ScalarColumns
from leadline.monitor.runfile.store import RunStore
from leadline.monitor.runfile.tail import HEADER_BYTES, tail_path
from leadline.records.run import RunInfo

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
INFO = RunInfo(model="Net", parameters=10)
MAX_WAIT_SECONDS = 60.0


@pytest.fixture(autouse=True)
def rare_transactions(monkeypatch):
    monkeypatch.setattr(write, "MAX_TAIL_SECONDS", 3600.0)


def columns(first: int, count: int) -> ScalarColumns:
    steps = tuple(range(first, first + count))
    return ScalarColumns(steps, tuple(map(float, steps)), {"loss": tuple(step + 0.5 for step in steps)})


def wait_for_tail(path: Path, beyond: int) -> int:
    """Wait until the tail has grown beyond a size; return its size."""
    end = time.monotonic() + MAX_WAIT_SECONDS
    while time.monotonic() < end:
        size = tail_path(path).stat().st_size
        if size > beyond:
            return size
        time.sleep(0.001)
    raise AssertionError("the tail does not grow")


def write_in_tail(writer: Writer, path: Path) -> None:
    """Store steps 0 to 4 in a transaction, and leave 5 to 11 in the tail."""
    writer.axis("blocks", ["a", "b"])
    writer.rows(columns(0, 5))
    writer.flush()
    writer.rows(columns(5, 5))
    size = wait_for_tail(path, HEADER_BYTES)
    writer.put(10, {"loss": 10.5}, {"grad_norm": ("blocks", array("f", [1.0, 2.0]))})
    size = wait_for_tail(path, size)
    writer.put(11, {"loss": float("nan")})
    wait_for_tail(path, size)


@contextmanager
def writing_child(path: Path) -> Iterator[int]:
    """A process that has written some steps to the file and others to the tail, and waits; it is killed at the end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        writer = Writer(path, INFO)  # until the end: a writer that nobody holds is closed
        write_in_tail(writer, path)
        os.write(writing, b".")
        time.sleep(MAX_WAIT_SECONDS)
        os._exit(0)
    try:
        assert os.read(reading, 1) == b"."
        yield child
    finally:
        kill(child)
        os.close(reading)
        os.close(writing)


def kill(child: int) -> None:
    """Kill the process, and wait for its end; nothing happens if it has ended."""
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def killed_in_tail(path: Path) -> None:
    with writing_child(path):
        pass


def stored_steps(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        return [step for (step,) in connection.execute("SELECT step FROM step ORDER BY step")]


def test_many_writes_make_one_transaction(tmp_path, monkeypatch):
    path, transactions, size = tmp_path / "a.leadline", [], HEADER_BYTES
    save = RunStore.save
    monkeypatch.setattr(RunStore, "save", lambda self, *args: (transactions.append(1), save(self, *args))[1])
    with Writer(path, INFO) as writer:
        writer.rows(columns(0, 1))
        writer.flush()
        transactions.clear()
        for number in range(1, 31):
            writer.rows(columns(number, 1))
            size = wait_for_tail(path, size)
        assert not transactions
    assert len(transactions) == 1
    assert not tail_path(path).exists()
    assert stored_steps(path) == list(range(31))


def test_a_reader_sees_what_a_killed_writer_left_in_the_tail_and_changes_nothing(tmp_path):
    path = tmp_path / "a.leadline"
    killed_in_tail(path)
    before = tail_path(path).read_bytes()
    for _ in range(2):
        with Run(path) as run:
            assert run.state == "broken off"
            assert run.steps == list(range(12))
            assert run.scalars("loss")[1][:11] == [step + 0.5 for step in range(11)]
            assert run.scalars("loss")[1][11] != run.scalars("loss")[1][11]
            assert list(run.vectors("grad_norm")[1][0]) == [1.0, 2.0]
            assert run.events() == []
    assert tail_path(path).read_bytes() == before
    assert stored_steps(path) == list(range(5))


def test_a_reader_that_was_there_before_the_kill_sees_the_tail_too(tmp_path):
    path = tmp_path / "a.leadline"
    with writing_child(path) as child, Run(path) as run:
        assert run.state == "writing"
        cursor = run.cursor
        kill(child)
        assert run.state == "broken off"
        assert run.since(cursor).scalars["loss"][0] == list(range(5, 12))


def test_the_next_writer_continues_after_the_tail(tmp_path):
    path = tmp_path / "a.leadline"
    killed_in_tail(path)
    with Writer(path, INFO) as writer:
        assert writer.last_step == 11
        writer.rows(columns(12, 2))
    assert stored_steps(path) == list(range(14))
    with Run(path) as run:
        assert [each.message for each in run.events()] == ["resumed at step 12"]


def test_a_record_that_is_cut_off_ends_the_tail(tmp_path):
    path = tmp_path / "a.leadline"
    killed_in_tail(path)
    tail = tail_path(path)
    tail.write_bytes(tail.read_bytes()[:-3])
    with Run(path) as run:
        assert run.steps == list(range(11))


def test_a_damaged_record_ends_the_tail(tmp_path):
    path = tmp_path / "a.leadline"
    killed_in_tail(path)
    content = bytearray(tail_path(path).read_bytes())
    content[HEADER_BYTES + 20] ^= 255
    tail_path(path).write_bytes(content)
    with Run(path) as run:
        assert run.steps == list(range(5))


def test_a_tail_that_was_stored_before_it_was_emptied_is_not_stored_twice(tmp_path):
    path, copy = tmp_path / "a.leadline", tmp_path / "copy"
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        writer = Writer(path, INFO)
        write_in_tail(writer, path)
        shutil.copy(tail_path(path), copy)
        writer.flush()
        os.write(writing, b".")
        time.sleep(MAX_WAIT_SECONDS)
        os._exit(0)
    assert os.read(reading, 1) == b"."
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    shutil.copy(copy, tail_path(path))
    with Run(path) as run:
        assert run.steps == stored_steps(path) == list(range(12))
        assert run.cursor == 13  # twelve losses and a vector: nothing was written again


def test_a_tail_of_another_writer_is_ignored(tmp_path):
    one, other = tmp_path / "a.leadline", tmp_path / "b.leadline"
    killed_in_tail(one)
    killed_in_tail(other)
    shutil.copy(tail_path(one), tail_path(other))
    with Run(other) as run:
        assert run.steps == list(range(5))


def test_without_a_tail_steps_are_stored_at_once(tmp_path, monkeypatch):
    def refuse(*args: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(write, "TailWriter", refuse)
    path = tmp_path / "a.leadline"
    with Writer(path, INFO) as writer:
        writer.rows(columns(0, 3))
        end = time.monotonic() + MAX_WAIT_SECONDS
        while len(stored_steps(path)) < 3 and time.monotonic() < end:
            time.sleep(0.001)
        assert stored_steps(path) == [0, 1, 2]
        assert writer.trouble == ""
