"""`leadline view` and `leadline.live.show`: a process that prints its address, and ends on a signal."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request

import pytest

from leadline.cli import main
from leadline.errors import InputError
from leadline.monitor.live import show


def view(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "leadline", "view", "--no-open", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_command_prints_its_address_serves_and_ends_with_an_interrupt(run):
    with view(str(run)) as process:
        url = process.stdout.readline().strip()
        with urllib.request.urlopen(url, timeout=20) as answer:
            assert b"run.leadline" in answer.read()
        with urllib.request.urlopen(f"{url}stream", timeout=20) as stream:
            assert stream.readline().startswith(b"id: ")
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "Traceback" not in said


def test_without_the_extra_the_command_names_it(run, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.startswith("leadline.monitor.live")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["view", str(run)]) == 2
    assert "pip install '.[live]'" in capsys.readouterr().err


def test_a_file_without_a_run_is_refused(tmp_path, capsys):
    (tmp_path / "a.leadline").write_text("text")
    assert main(["view", str(tmp_path / "a.leadline")]) == 2
    assert "not a run file" in capsys.readouterr().err


def test_a_folder_without_runs_is_refused(tmp_path, capsys):
    assert main(["view", str(tmp_path)]) == 2
    assert "1 to 6 run files" in capsys.readouterr().err


def test_a_notebook_gets_a_frame_whose_process_ends_with_it(run):
    shown = show(run)
    assert shown._repr_html_().startswith(f'<iframe src="{shown.url}"')
    with urllib.request.urlopen(shown.url, timeout=20) as answer:
        assert answer.status == 200
    shown.close()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(shown.url, timeout=20)


def test_a_notebook_reports_what_is_wrong_with_a_file(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        show(tmp_path / "nothing.leadline")
