"""Plain logs become samples: columns are found by name, and what cannot be read is reported."""

from __future__ import annotations

import math
import sys

import pytest

from leadline.errors import InputError
from leadline.monitor.runfile.logs import is_log, read_log


def read(tmp_path, text: str, **columns: str):
    path = tmp_path / "log.csv"
    path.write_text(text, encoding="utf-8")
    return [(sample.step, sample.scalars) for sample in read_log(path, columns)]


@pytest.mark.parametrize(
    "header",
    [
        "step,loss",
        "Step,Train/Loss",
        "global_step,train_loss",
        "iteration;training loss",
        "trainer/global_step,train_loss_step",
        "\ufeffstep\tloss",
        "val_loss,step,loss",
        "step,leadline/loss",
    ],
)
def test_the_columns_of_common_loggers_are_found(tmp_path, header):
    delimiter = max(",;\t", key=header.count)
    columns = header.split(delimiter)
    cells = delimiter.join(
        "7" if "step" in name.lower() and "loss" not in name.lower() else "2.5" for name in columns
    )
    cells = cells if "iteration" not in header else "7;2.5"
    assert read(tmp_path, f"{header}\n{cells}\n") == [(7, {"loss": 2.5})]


def test_a_validation_loss_is_not_used_as_the_loss(tmp_path):
    with pytest.raises(InputError, match="--column loss=NAME"):
        read(tmp_path, "step,val_loss\n0,1\n")


def test_a_column_can_be_named(tmp_path):
    assert read(tmp_path, "t,ce,loss\n5,1.5,9\n", loss="ce", step="t") == [(5, {"loss": 1.5})]


def test_without_a_step_rows_are_counted(tmp_path):
    assert [step for step, _ in read(tmp_path, "loss\n3\n2\n")] == [0, 1]


def test_empty_cells_were_not_measured_and_nan_was(tmp_path):
    found = read(tmp_path, "step,loss,lr\n0,,0.1\n1,NaN,\n2,inf,\n3\n\n")
    assert found[0] == (0, {"lr": 0.1})
    assert math.isnan(found[1][1]["loss"])
    assert found[2] == (2, {"loss": math.inf})
    assert len(found) == 3


def test_rows_of_one_step_are_joined(tmp_path):
    assert read(tmp_path, "step,loss,lr\n4,1,\n4,,0.1\n5,2,\n") == [
        (4, {"loss": 1.0, "lr": 0.1}),
        (5, {"loss": 2.0}),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no columns"),
        ("step,loss\n1,abc\n", "'abc' in line 2"),
        ("step,loss\nnan,1\n", "'nan' in line 2"),
        ("step,loss\n1e300,1\n", "line 2"),
        ("a,b\n1,2\n", "'a', 'b'"),
    ],
)
def test_an_unreadable_log_is_reported(tmp_path, text, words):
    with pytest.raises(InputError, match=words):
        read(tmp_path, text)


def test_a_binary_file_is_reported(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"step,loss\n1,\xff\xfe\x00\n")
    with pytest.raises(InputError, match="UTF-8"):
        read_log(tmp_path / "a.csv", {})
    with pytest.raises(InputError, match="No such file"):
        read_log(tmp_path / "none.csv", {})


def test_an_unknown_column_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(InputError, match="'step', 'loss'"):
        read(tmp_path, "step,loss\n1,2\n", loss="ce")


def test_logs_are_recognized_by_their_names(tmp_path):
    (tmp_path / "events.out.tfevents.1.host").touch()
    assert is_log(tmp_path)
    assert is_log(tmp_path / "events.out.tfevents.1.host")
    assert is_log(tmp_path / "a.CSV")
    assert not is_log(tmp_path / "train.py")
    assert not is_log(tmp_path / "train.py:factory")


def test_events_of_tensorboard_are_read(tmp_path):
    pytest.importorskip("tensorboard")
    writing = pytest.importorskip("torch.utils.tensorboard")
    with writing.SummaryWriter(str(tmp_path)) as writer:
        for step in range(3):
            writer.add_scalar("Train/Loss", step + 0.5, step)
            writer.add_scalar("train/grad_norm", 1.0, step, new_style=True)
            writer.add_scalar("val/loss", 9.0, step)
    found = [(sample.step, sample.scalars) for sample in read_log(tmp_path, {})]
    assert found == [(step, {"loss": step + 0.5, "grad_norm": 1.0}) for step in range(3)]


def test_without_tensorboard_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_accumulator", None)
    (tmp_path / "events.out.tfevents.1").touch()
    with pytest.raises(InputError, match=r"pip install '\.\[tensorboard\]'"):
        read_log(tmp_path, {})


def test_a_log_with_a_header_alone_has_no_samples(tmp_path):
    assert read(tmp_path, "step,loss\n") == []


def test_rows_of_one_step_are_one_sample_with_the_last_values(tmp_path):
    assert read(tmp_path, "step,loss,lr\n1,2.0,\n1,,0.1\n2,1.0,0.1\n2,0.5,0.1\n") == [
        (1, {"loss": 2.0, "lr": 0.1}),
        (2, {"loss": 0.5, "lr": 0.1}),
    ]
