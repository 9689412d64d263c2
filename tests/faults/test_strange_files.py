"""What is no file at all, or not the one that was meant: pipes, devices, folders, files of other programs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from torch import nn

import leadline
from leadline.cli import main
from leadline.cli.baseline import read_baseline
from leadline.errors import InputError, LeadlineError, SchemaError
from leadline.lab.sweeps.store import CellStore
from leadline.monitor.runfile import Run
from leadline.monitor.runfile.logs import is_log, read_log
from leadline.records import codec
from leadline.tracer.weightless.configs import MAX_LAYERS, build_model, read_config
from tests.support import reports as samples

ENDLESS = Path("/dev/zero")
UNREADABLE = Path("/proc/self/mem")  # opens, and fails when it is read


@pytest.fixture
def pipe(tmp_path):
    path = tmp_path / "pipe.leadline"
    os.mkfifo(path)
    return path


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "report.json"
    path.write_text(samples.whole().to_json())
    return path


def said(capsys, *arguments: object) -> str:
    """What a command that has to fail with words wrote to stderr."""
    assert main([str(each) for each in arguments]) == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    assert captured.out == ""
    return captured.err


def test_a_pipe_is_refused_as_a_run_and_not_waited_for(pipe):
    with pytest.raises(InputError, match="a pipe or a device"):
        Run(pipe)


def test_a_pipe_in_a_folder_of_runs_does_not_hold_up_the_list(pipe, capsys):
    assert "a pipe or a device" in said(capsys, "runs", pipe.parent)


@pytest.mark.parametrize("name", ["log.csv", "events.out.tfevents.1"])
def test_a_pipe_is_refused_as_a_log(tmp_path, name):
    path = tmp_path / name
    os.mkfifo(path)
    assert is_log(path)
    with pytest.raises(InputError, match="a pipe or a device"):
        read_log(path, {})


def test_a_pipe_among_the_events_of_a_folder_is_passed_over(tmp_path):
    os.mkfifo(tmp_path / "events.out.tfevents.1")
    assert not is_log(tmp_path)


READERS = {
    "report": lambda path, saved: ("report", path),
    "compare": lambda path, saved: ("compare", saved, path),
    "config": lambda path, saved: ("check", "--config", path, "x.py:make"),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("path", [ENDLESS, UNREADABLE], ids=["endless", "unreadable"])
def test_a_device_file_is_refused_with_a_message(saved, capsys, monkeypatch, name, path):
    if not path.exists():
        pytest.skip("there is no such device here")
    monkeypatch.setattr(codec, "MAX_FILE_BYTES", 2**21)
    assert str(path) in said(capsys, *READERS[name](path, saved))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_report_that_a_shell_wrote_in_its_own_encoding_is_read(saved, capsys, encoding):
    saved.write_text(saved.read_text(), encoding=encoding)
    assert main(["report", str(saved)]) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    "read", [read_baseline, lambda path: leadline.apply(nn.Linear(1, 1), path)], ids=["baseline", "recipe"]
)
def test_a_file_that_is_not_text_is_refused_with_a_message(tmp_path, read):
    path = tmp_path / "some.json"
    path.write_bytes(b"\x80\xff\x00")
    with pytest.raises(InputError, match=r"some\.json"):
        read(path)


@pytest.mark.parametrize(
    "fields",
    [{"n_layer": MAX_LAYERS + 1}, {"n_layer": -1}, {"vocab_size": 0}, {"vocab_size": 10**400}],
    ids=["endless", "less than nothing", "no words", "too many words"],
)
def test_a_config_of_impossible_sizes_is_refused_before_it_is_built(fields):
    sizes = {"n_layer": 1, "n_embd": 8, "n_head": 2, "bos_token_id": None, "eos_token_id": None, **fields}
    with pytest.raises(InputError, match="a config with a"):
        build_model(read_config({"model_type": "gpt2", **sizes}))


@pytest.mark.parametrize(
    "text", ["[" * 10_000, '{"model_type": ["gpt2"]}'], ids=["nested", "a list for a name"]
)
def test_a_config_that_crashes_transformers_is_refused_with_a_message(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError):
        read_config(path)


@pytest.mark.parametrize(
    "row", [{}, {"settings": 3}, {"settings": {}}], ids=["bare", "wrong", "without result"]
)
def test_a_cell_without_its_parts_is_refused(tmp_path, row):
    path = tmp_path / "cells.jsonl"
    path.write_text(json.dumps({"schema": "leadline.cells/1", "key": "a", **row}) + "\n")
    with pytest.raises(SchemaError):
        CellStore(path)


@pytest.mark.parametrize("name", [".", "missing/cells.jsonl"], ids=["a folder", "in no folder"])
def test_cells_that_could_not_be_stored_are_refused_before_they_are_run(tmp_path, name):
    with pytest.raises(LeadlineError):
        CellStore(tmp_path / name)


def test_cells_on_a_link_that_leads_nowhere_are_refused(tmp_path):
    path = tmp_path / "loop"
    path.symlink_to(path)
    with pytest.raises(InputError):
        CellStore(path).add("a", {}, 1)


def test_a_file_that_is_meant_is_still_read(tmp_path, saved):
    assert codec.read_text(saved, "a report") == saved.read_text()
    copy = shutil.copy(saved, tmp_path / "copy.json")
    assert main(["compare", str(saved), str(copy)]) == 0
