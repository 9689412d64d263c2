"""Training continues when the disk fails: one warning, bounded memory, and recovery when the disk is back."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from array import array
from functools import partial
from pathlib import Path

import pytest

from leadline.monitor.runfile import Run, Writer, access, schema
from leadline.monitor.runfile.queue import MAX_QUEUED_NOTES, Note, StepNumbers, WriteQueue
from leadline.monitor.runfile.write import WriterThread
from leadline.records.run import RunInfo

INFO = RunInfo(model="Net", parameters=10)
BIG = array("f", range(5000))
NOBODY = 65534


def warned(recwarn) -> str:
    """The one warning there was."""
    (warning,) = recwarn
    return str(warning.message)


def put(writer: Writer, steps: range) -> None:
    for step in steps:
        writer.put(step, {"loss": 1.0}, {"grad_norm": ("blocks", BIG)})


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("may not mount a small file system here; the limited process below stands in for it")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_causes_one_warning_and_stops_nothing(small_disk, recwarn):
    writer = Writer(small_disk / "a.leadline", INFO)
    (small_disk / "filler").write_bytes(bytes(600_000))
    for begin in range(0, 60, 20):
        put(writer, range(begin, begin + 20))
        writer.flush()
    writer.close()
    assert "full" in warned(recwarn)
    assert "full" in writer.trouble


def test_steps_wait_in_memory_while_the_disk_is_full(small_disk, recwarn):
    filler = small_disk / "filler"
    writer = Writer(small_disk / "a.leadline", INFO)
    filler.write_bytes(bytes(850_000))
    put(writer, range(20))
    writer.flush()
    assert "full" in writer.trouble
    filler.unlink()
    writer.flush()
    assert writer.trouble == ""
    writer.close()
    assert "full" in warned(recwarn)
    with Run(small_disk / "a.leadline") as run:
        assert run.steps == list(range(20))
        assert run.vectors("grad_norm")[1] == [BIG] * 20


LIMITED = """
import resource, signal, sys, warnings
from array import array
from leadline.records.run import RunInfo
from leadline.monitor.runfile import Writer

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
warnings.simplefilter("always")
writer = Writer(sys.argv[1], RunInfo(model="Net", parameters=10))
trained = 0
for step in range(40):
    writer.put(step, {"loss": 1.0}, {"grad_norm": ("blocks", array("f", range(5000)))})
    trained += 1
    if step == 19:
        writer.flush()
        print("trouble:", writer.trouble)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
writer.close()
print("trained:", trained)
"""


def test_a_process_at_its_file_size_limit_continues_and_recovers(tmp_path):
    done = run_python(LIMITED, tmp_path / "a.leadline")
    assert "trained: 40" in done.stdout
    assert "trouble: disk I/O error" in done.stdout or "trouble: database or disk is full" in done.stdout
    assert done.stderr.count("UserWarning") == 1
    with Run(tmp_path / "a.leadline") as run:
        assert run.steps == list(range(40))


FORBIDDEN = f"""
import os, sys, warnings
from leadline.records.run import RunInfo
from leadline.monitor.runfile import Writer

warnings.simplefilter("always")
if os.getuid() == 0:
    os.setuid({NOBODY})
writer = Writer(sys.argv[1], RunInfo(model="Net", parameters=10))
for step in range(40):
    writer.put(step, {{"loss": 1.0}})
writer.close()
print("trained, trouble:", writer.trouble)
"""


def test_in_a_read_only_directory_training_continues_with_one_warning(reachable):
    reachable.chmod(0o555)
    done = run_python(FORBIDDEN, reachable / "a.leadline")
    assert "trained, trouble: unable to open database file" in done.stdout
    assert done.stderr.count("UserWarning") == 1
    assert not any(reachable.iterdir())


def test_a_directory_that_vanishes_is_waited_for(tmp_path, recwarn):
    folder = tmp_path / "runs"
    writer = Writer(folder / "a.leadline", INFO)
    put(writer, range(3))
    writer.flush()
    shutil.rmtree(folder)
    put(writer, range(3, 6))
    writer.flush()
    assert "No such file" in writer.trouble or "unable to open" in writer.trouble
    folder.mkdir()
    writer.flush()
    assert writer.trouble == ""
    writer.close()
    assert "No such file" in warned(recwarn)
    with Run(folder / "a.leadline") as run:
        assert run.steps == [3, 4, 5]
        assert "steps up to 2" in run.events()[0].message
        assert run.info.id == writer.info.id


def test_after_a_failure_a_step_can_still_be_completed(tmp_path, recwarn):
    """Reopening the file in the middle of a run is no resume: what the step had already must stay."""
    path, elsewhere = tmp_path / "a.leadline", tmp_path / "elsewhere"
    writer = Writer(path, INFO)
    writer.put(0, {"loss": 1.0})
    writer.flush()
    path.rename(elsewhere)
    writer.put(1, {"loss": 2.0})
    writer.flush()
    path.unlink(missing_ok=True)
    elsewhere.rename(path)
    writer.put(0, {"lr": 0.1})
    writer.close()
    assert "No such file" in warned(recwarn)
    with Run(path) as run:
        assert run.scalars("loss") == ([0, 1], [1.0, 2.0])
        assert run.scalars("lr") == ([0], [0.1])
        assert run.events() == []


def test_without_shared_memory_the_file_is_written_without_a_log_after_a_warning(
    tmp_path, monkeypatch, recwarn
):
    """The dot-file locking of SQLite knows no shared memory, as some file systems."""
    monkeypatch.setattr(access, "connect", partial(schema.connect, options="&vfs=unix-dotfile"))
    with Writer(tmp_path / "a", INFO) as writer:
        put(writer, range(3))
        writer.flush()
        assert not (tmp_path / "a-wal").exists()
        assert writer.trouble == ""
    assert "cannot share memory" in warned(recwarn)
    with Run(tmp_path / "a") as run:
        assert run.steps == [0, 1, 2]


def test_on_a_network_file_system_there_is_no_log_and_files_may_be_renumbered(tmp_path, monkeypatch, recwarn):
    monkeypatch.setattr(access, "network_file_system", lambda _: "nfs4")
    real = Path.stat
    with Writer(tmp_path / "a", INFO) as writer:
        put(writer, range(3))
        writer.flush()
        assert not (tmp_path / "a-wal").exists()
        monkeypatch.setattr(Path, "stat", lambda path, **how: _renumbered(real(path, **how)))
        put(writer, range(3, 6))
        writer.flush()
        assert writer.trouble == ""
    assert "nfs4" in warned(recwarn)


def _renumbered(found: os.stat_result) -> os.stat_result:
    return os.stat_result([found[0], found[1] + 1, *found[2:10]])


def test_a_filter_that_turns_warnings_into_errors_does_not_stop_training(tmp_path):
    writer = Writer(tmp_path / "a.leadline", INFO)
    shutil.rmtree(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        put(writer, range(3))
        writer.close()
    assert writer.trouble


def test_numbers_that_cannot_be_stored_are_dropped_and_later_ones_stored(tmp_path, recwarn):
    writer = Writer(tmp_path / "a.leadline", INFO)
    writer.put(2**80, {"loss": 1.0})
    writer.flush()
    assert writer.trouble
    writer.put(1, {"loss": 1.0})
    writer.close()
    assert "too large" in warned(recwarn)
    with Run(tmp_path / "a.leadline") as run:
        assert run.steps == [1]


def test_the_queue_is_bounded_and_dropped_steps_are_recorded(tmp_path):
    thread = WriterThread(tmp_path / "none" / "a.leadline", INFO, resume=True, max_bytes=100_000)
    thread.start()
    shutil.rmtree(tmp_path / "none")
    thread.flush(5.0)
    for step in range(50):
        thread.queue.add(StepNumbers(step, 0.0, {"loss": 1.0}, {"v": ("blocks", BIG.tobytes())}))
    assert len(thread.queue) == 4
    (tmp_path / "none").mkdir()
    thread.flush(5.0, closing=True)
    with Run(tmp_path / "none" / "a.leadline") as run:
        assert run.steps == [46, 47, 48, 49]
        assert "46 steps from 0 to 45" in run.events()[0].message


def test_a_batch_that_is_returned_comes_before_later_steps():
    queue = WriteQueue()
    for step in range(3):
        queue.add(StepNumbers(step, 0.0, {}, {}))
    batch = queue.take()
    queue.add(StepNumbers(3, 0.0, {}, {}))
    queue.put_back(batch)
    assert [each.step for each in queue.take().steps] == [0, 1, 2, 3]


def test_notes_are_bounded_too():
    queue = WriteQueue()
    for step in range(MAX_QUEUED_NOTES + 5):
        queue.add(Note("event", step, ""))
    assert [note.step for note in queue.take().notes][:1] == [5]


def run_python(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
