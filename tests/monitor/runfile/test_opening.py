"""Who may write a file: one run, one process at a time."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from array import array
from pathlib import Path

import pytest
from msgspec.structs import replace

from leadline.errors import InputError
from leadline.monitor.runfile import Run, Writer, access, owner
from leadline.monitor.runfile.access import network_file_system
from leadline.monitor.runfile.owner import Owner, current_owner, is_alive, seems_alive
from leadline.records.run import RunInfo
from tests.support.forks import status_in_child

INFO = RunInfo(model="Net", parameters=10)
VECTOR = {"grad_norm": ("blocks", array("f", [1.0]))}


def write(path: Path, steps: range, info: RunInfo = INFO) -> Writer:
    with Writer(path, info) as writer:
        for step in steps:
            writer.put(step, {"loss": float(step)})
    return writer


def test_a_resumed_run_continues_in_its_file(tmp_path):
    first = write(tmp_path / "a.leadline", range(3))
    second = write(tmp_path / "a.leadline", range(3, 5))
    assert (first.last_step, second.last_step) == (None, 2)
    assert second.info == first.info
    with Run(tmp_path / "a.leadline") as run:
        assert run.scalars("loss") == ([0, 1, 2, 3, 4], [0.0, 1.0, 2.0, 3.0, 4.0])
        assert [(event.kind, event.step, event.message) for event in run.events()] == [
            ("resume", 3, "resumed at step 3")
        ]


def test_steps_written_again_after_a_resume_replace_the_old_ones_and_an_event_records_it(tmp_path):
    path = tmp_path / "a.leadline"
    with Writer(path, INFO) as writer:
        for step in range(5):
            writer.put(step, {"loss": 1.0, "lr": 0.1}, VECTOR)
    with Writer(path, INFO) as writer:
        writer.put(3, {"loss": 2.0})
        writer.put(3, {"grad_norm": 5.0})
    with Run(path) as run:
        assert run.scalars("loss") == ([0, 1, 2, 3, 4], [1.0, 1.0, 1.0, 2.0, 1.0])
        assert run.scalars("lr")[0] == run.vectors("grad_norm")[0] == [0, 1, 2, 4]
        assert run.scalars("grad_norm") == ([3], [5.0])
        (event,) = run.events()
    assert (event.kind, event.data) == ("resume", {"last": 4})
    assert "steps 3 to 4 are written again" in event.message


def test_of_a_number_written_twice_the_later_counts_and_one_event_records_it(tmp_path):
    with Writer(tmp_path / "a.leadline", INFO) as writer:
        for step in (0, 1):
            writer.put(step, {"loss": 1.0})
            writer.put(step, {"loss": 2.0})
            writer.put(step, {"lr": 3.0})
    with Run(tmp_path / "a.leadline") as run:
        assert run.scalars("loss") == ([0, 1], [2.0, 2.0])
        assert [event.message for event in run.events()] == [
            "step 0 was written twice; the later numbers replace the earlier ones"
        ]


@pytest.mark.parametrize(
    "other",
    [RunInfo(model="Other", parameters=10), RunInfo(model="Net", parameters=11), replace(INFO, id="b")],
)
def test_another_run_in_the_same_file_is_refused(tmp_path, other):
    write(tmp_path / "a.leadline", range(1))
    with pytest.raises(InputError, match="holds another run: Net"):
        Writer(tmp_path / "a.leadline", other)


def test_a_run_that_must_be_new_refuses_a_file_that_holds_one(tmp_path):
    write(tmp_path / "a.leadline", range(1))
    with pytest.raises(InputError, match="expected a new file"):
        Writer(tmp_path / "a.leadline", INFO, resume=False)


def test_two_writers_of_one_process_on_one_file_are_refused(tmp_path):
    with (
        Writer(tmp_path / "a.leadline", INFO),
        pytest.raises(InputError, match="this process is writing"),
    ):
        Writer(tmp_path / "a.leadline", INFO)


HOLDER = """
import sys
from leadline.records.run import RunInfo
from leadline.monitor.runfile import Writer
writer = Writer(sys.argv[1], RunInfo(model="Net", parameters=10))
print("open", flush=True)
sys.stdin.read()
"""


def test_the_file_of_a_running_writer_is_refused_and_that_of_a_dead_one_taken_over(tmp_path):
    path = tmp_path / "a.leadline"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(InputError, match=f"process {holder.pid} on"):
            Writer(path, INFO)
        with Run(path) as run:
            assert run.is_live
        holder.kill()
    with Run(path) as run:
        assert not run.is_live
    write(path, range(1))


def with_owner(path: Path, who: Owner) -> None:
    write(path, range(1))
    connection = sqlite3.connect(path)
    owner.write_owner(connection, who)
    connection.commit()
    connection.close()


def test_a_silent_writer_on_another_machine_is_taken_over(tmp_path, monkeypatch):
    monkeypatch.setattr(access, "MAX_SILENCE_SECONDS", 0.3)
    with_owner(tmp_path / "a.leadline", replace(current_owner(), host="elsewhere"))
    write(tmp_path / "a.leadline", range(1, 2))
    with Run(tmp_path / "a.leadline") as run:
        assert run.scalars("loss") == ([0, 1], [0.0, 1.0])


def test_a_file_whose_remote_writer_is_alive_is_refused(tmp_path, monkeypatch):
    """While this one waits, the other writes."""
    path = tmp_path / "a.leadline"
    other = replace(current_owner(), host="elsewhere")
    with_owner(path, other)
    monkeypatch.setattr(access.time, "sleep", lambda _: with_owner_again(path, other))
    with pytest.raises(InputError, match="on elsewhere is writing"):
        Writer(path, INFO)


def with_owner_again(path: Path, who: Owner) -> None:
    connection = sqlite3.connect(path)
    owner.write_owner(connection, who)
    connection.commit()
    connection.close()


def test_a_writer_whose_file_was_taken_over_stops_and_says_so(tmp_path, recwarn):
    path = tmp_path / "a.leadline"
    writer = Writer(path, INFO)
    writer.put(0, {"loss": 0.0})
    writer.flush()
    with_owner_again(path, replace(current_owner(), host="elsewhere"))
    writer.put(1, {"loss": 1.0})
    writer.flush()
    writer.put(2, {"loss": 1.0})
    writer.close()
    assert "taken over the file" in str(recwarn.pop(UserWarning).message)
    assert "taken over the file" in writer.trouble
    with Run(path) as run:
        assert run.steps == [0]


def test_a_reused_process_id_is_not_the_writer():
    me = current_owner()
    assert is_alive(me)
    assert not is_alive(replace(me, born="another time")) or me.born == ""
    assert is_alive(replace(me, host="elsewhere")) is None
    assert seems_alive(replace(me, host="elsewhere"))
    assert not seems_alive(replace(me, host="elsewhere", beat=0.0))


def test_a_directory_is_refused(tmp_path):
    with pytest.raises(InputError, match="the directory"):
        Writer(tmp_path, INFO)


def test_the_folder_of_a_new_file_is_created(tmp_path):
    write(tmp_path / "runs" / "today" / "a.leadline", range(1))
    assert (tmp_path / "runs" / "today" / "a.leadline").exists()


def test_a_closed_file_stands_alone(tmp_path):
    write(tmp_path / "a.leadline", range(3))
    assert [path.name for path in tmp_path.iterdir()] == ["a.leadline"]


def test_a_forked_child_neither_writes_nor_waits(tmp_path):
    writer = Writer(tmp_path / "a.leadline", INFO)
    writer.put(0, {"loss": 0.0})
    assert status_in_child(lambda: (writer.put(1, {"loss": 1.0}), writer.close())) == 0
    writer.close()
    with Run(tmp_path / "a.leadline") as run:
        assert run.steps == [0]


def test_a_garbage_collected_writer_stores_what_is_left(tmp_path):
    writer = Writer(tmp_path / "a.leadline", INFO)
    writer.put(0, {"loss": 0.0})
    del writer
    with Run(tmp_path / "a.leadline") as run:
        assert run.steps == [0]
        assert not run.is_live


def test_a_program_that_ends_without_closing_has_stored_everything(tmp_path):
    code = HOLDER.replace("sys.stdin.read()", 'writer.put(7, {"loss": 1.0})')
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], check=True, capture_output=True)
    with Run(tmp_path / "a") as run:
        assert run.steps == [7]


def test_changed_labels_are_recorded_as_an_event(tmp_path):
    for labels in (["a"], ["a", "b"]):
        with Writer(tmp_path / "a.leadline", INFO) as writer:
            writer.axis("blocks", labels)
            writer.put(0, {})
    with Run(tmp_path / "a.leadline") as run:
        assert run.axes == {"blocks": ("a", "b")}
        assert any("blocks changed" in event.message for event in run.events())


MOUNTS = "disk / ext4 rw 0 0\nserver:/home /home nfs4 rw 0 0\nssd /home/fast\\040disk ext4 rw 0 0\n"


@pytest.mark.parametrize(
    ("place", "kind"), [("/home/me/a", "nfs4"), ("/opt/a", ""), ("/home/fast disk/a", ""), ("/homes/a", "")]
)
def test_a_network_file_system_is_recognized_by_the_nearest_mount(place, kind):
    assert network_file_system(Path(place), MOUNTS) == kind
