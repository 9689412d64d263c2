"""Sinks with the real trackers: about twenty numbers and one picture at any depth; a failure ends only the sink."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pkgutil
import sqlite3
import struct
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import leadline
from leadline.checks._history import History
from leadline.integrations import sinks
from leadline.integrations.sinks import (
    Feed,
    FunctionSink,
    MLflowSink,
    Sink,
    TensorBoardSink,
    TrackioSink,
    WandbSink,
)
from leadline.monitor import trackers
from leadline.monitor.tracker_feed import SUMMARY_NAMES, depth_profile, summary_numbers
from leadline.records.run import Alert, Event, Sample
from tests.support import ROOT
from tests.support.library_loops import needs

MOST_KEYS = 20


def test_every_tracker_is_exported_by_the_page_of_sinks():
    exported = {getattr(sinks, name).__module__ for name in sinks.__all__}
    modules = {info.name for info in pkgutil.iter_modules(trackers.__path__, f"{trackers.__name__}.")}
    assert modules
    assert modules - exported == set()


def history_of(depth: int) -> History:
    """Two steps of a model with so many blocks, everything measured."""
    history = History()
    for step in range(2):
        scalars = {
            "loss": 2.0, "lr": 0.1, "grad_norm": 1.0, "update_norm": 0.1, "weight_norm": 10.0, "grad_clip": 0.0,
            "loss_scale": 1024.0, "non_finite": 0.0,
        }  # fmt: skip
        blocks = {
            "forward_ms": [2.0**index for index in range(depth)],
            "backward_ms": [3.0**-index for index in range(depth)],
        }
        names = ("branch_skip", "dead", "saturated", "likeness", "attention_logit", "attention_entropy")
        blocks |= {name: [0.1 * index for index in range(depth)] for name in names}
        history.add(Sample(step=step, scalars=scalars, vectors=blocks | {"grad_norm": [0.1, 10.0] * depth}))
    return history


class Trained:
    """A watch that has been."""

    overhead = 0.005

    def __init__(self, depth: int = 4) -> None:
        self.history = history_of(depth)
        self.alert_changes: tuple[Alert, ...] = (alert("T801"), alert("T803"))
        self.events = (Event(step=1, time=0.0, kind="sample", message="8 ops"),)


def alert(code: str, state: str = "raised", step: int = 1) -> Alert:
    return Alert(
        code=code, name="toy", severity="warning", message="something is odd", where="layers.1", since=0, step=step,
        state=state,
    )  # fmt: skip


def test_the_numbers_are_twenty_and_no_more_at_any_depth():
    for depth in (2, 64):
        found = summary_numbers(history_of(depth), overhead=0.01, alerts=0)
        assert set(found) == set(SUMMARY_NAMES)
        assert len(found) <= MOST_KEYS


def test_the_summary_numbers_match_their_definitions():
    found = summary_numbers(history_of(5), overhead=0.01, alerts=3)
    assert found["update_over_weight"] == pytest.approx(0.01)
    assert found["gradient_spread"] == pytest.approx(2.0)
    assert found["signal_gain"] == pytest.approx(16.0)
    assert found["gradient_gain"] == pytest.approx(81.0)
    assert (found["dead"], found["attention_entropy"]) == pytest.approx((0.4, 0.0))
    assert (found["overhead"], found["alerts"]) == (0.01, 3.0)


def test_unmeasured_metrics_are_not_sent():
    history = History().extend([Sample(step=0, scalars={"loss": 2.0})])
    assert set(summary_numbers(history, overhead=0.0, alerts=0)) == {"loss", "overhead", "alerts"}


def test_nan_is_sent_as_nan():
    history = History().extend([Sample(step=0, scalars={"loss": math.nan})])
    assert math.isnan(summary_numbers(history, overhead=0.0, alerts=0)["loss"])


@needs("PIL")
def test_the_picture_shows_the_blocks_and_leaves_gaps_where_nothing_was_measured():
    image = depth_profile(history_of(6))
    assert image.size == (720, 400)
    assert (31, 119, 180) in {color for _, color in image.getcolors(100_000)}
    gap = History().extend([Sample(step=0, scalars={}, vectors={"forward_ms": [1.0, 0.0, math.nan, 1.0]})])
    assert depth_profile(gap) is not None
    assert depth_profile(History()) is None


def collect_calls() -> tuple[FunctionSink, list, list, list]:
    logged, shown, alerts = [], [], []
    sink = FunctionSink(
        lambda values, step: logged.append((step, values)),
        show=lambda *a: shown.append(a),
        tell=alerts.append,
    )
    return sink, logged, shown, alerts


def test_a_feed_sends_every_so_many_steps_and_each_alert_once():
    sink, logged, shown, alerts = collect_calls()
    watch = Trained()
    feed = Feed(watch, [sink], every=10)
    for step in range(2, 35):
        watch.history.add(Sample(step=step, scalars={"loss": 1.0}))
        if step == 20:
            watch.alert_changes = (*watch.alert_changes, alert("T801", "cleared", 20))
        feed.push()
    feed.close()
    assert [step for step, _ in logged] == [2, 12, 22, 32, 34]
    assert [(each.code, each.state) for each in alerts] == [
        ("T801", "raised"),
        ("T803", "raised"),
        ("T801", "cleared"),
    ]
    assert logged[0][1]["leadline/alerts"] == 2.0
    assert logged[-1][1]["leadline/alerts"] == 1.0
    assert len(shown) == 1


def test_a_sink_that_fails_is_left_out_with_one_warning():
    def fail(values, step):
        raise OSError("no route to host")

    good, logged, _, _ = collect_calls()
    watch = Trained()
    feed = Feed(watch, [FunctionSink(fail), good], every=1)
    with pytest.warns(RuntimeWarning, match="FunctionSink failed and receives nothing more"):
        feed.push()
    for step in range(2, 6):
        watch.history.add(Sample(step=step, scalars={"loss": 1.0}))
        feed.push()  # a further warning would be an error here
    assert len(logged) == 5


def test_a_real_watch_feeds_a_sink():
    sink, logged, shown, _ = collect_calls()
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(6)], nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with leadline.watch(model, optimizer, every=2) as watch:
        feed = Feed(watch, [sink], every=2)
        for _ in range(6):
            optimizer.zero_grad()
            watch.loss(model(torch.randn(16, 8)).square().mean()).backward()
            optimizer.step()
            feed.push()
    feed.close()
    keys = {key for _, values in logged for key in values}
    assert {"leadline/loss", "leadline/grad_norm", "leadline/update_norm", "leadline/signal_gain"} <= keys
    assert len(keys) <= MOST_KEYS
    assert shown


def filled(sink: Sink) -> None:
    feed = Feed(Trained(), [sink])
    feed.push()
    feed.close()


@needs("tensorboard")
def test_tensorboard_has_the_scalars_the_picture_and_the_alerts(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        filled(TensorBoardSink(writer))
    found = EventAccumulator(str(tmp_path)).Reload()
    scalars = found.Tags()["scalars"]
    assert len(scalars) == len(SUMMARY_NAMES)
    assert found.Scalars("leadline/loss")[0].value == 2.0
    assert found.Tags()["images"] == ["leadline/depth_profile"]
    texts = [each.tensor_proto.string_val[0] for each in found.Tensors("leadline/alerts/text_summary")]
    assert texts[0].startswith(b"step 1: T801 toy (layers.1): something is odd")


@pytest.mark.slow
@needs("wandb")
def test_wandb_offline_has_the_scalars_the_picture_and_the_alerts(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import wandb

        run = wandb.init(mode="offline", dir=str(tmp_path), project="leadline")
        filled(WandbSink(run))
        run.finish()
    records = finished_records(next(tmp_path.rglob("*.wandb")))
    rows = [
        {(*item.nested_key, item.key)[0]: item.value_json for item in record.history.item}
        for record in records
    ]
    keys = {key for row in rows for key in row if key.startswith("leadline/")}
    assert {"leadline/loss", "leadline/step", "leadline/depth_profile"} <= keys
    assert len(keys) <= MOST_KEYS + 2
    summary = [
        i for r in records for i in r.summary.update if "leadline/alerts_told" in (i.key, *i.nested_key)
    ]
    assert "T801 toy" in summary[-1].value_json


def finished_records(path: Path) -> list:
    """W&B writes from another process, which may end after `finish` returned."""
    for _ in range(200):
        records = wandb_records(path)
        if records and records[-1].WhichOneof("record_type") == "exit":
            return records
        time.sleep(0.1)
    raise AssertionError("W&B did not finish its file")


def wandb_records(path: Path) -> list:
    """The records of a W&B file: after 7 bytes, blocks of 32 KiB of chunks, each with checksum, length and place."""
    from wandb.proto import wandb_internal_pb2

    data, at, parts, found = path.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, place = struct.unpack_from("<HB", data, at + 4)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if place in (1, 4):  # whole, or the last of several
            found.append(wandb_internal_pb2.Record.FromString(parts))
            parts = b""
    return found


@pytest.mark.slow
@needs("mlflow")
def test_mlflow_files_have_the_metrics_the_picture_and_the_alerts(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=tmp_path.as_uri())
        run = client.create_run(client.create_experiment("leadline")).info.run_id
        filled(MLflowSink(client, run))
        metrics = client.get_run(run).data.metrics
        names = {each.path for each in client.list_artifacts(run)}
    assert len(metrics) == len(SUMMARY_NAMES)
    assert metrics["leadline/loss"] == 2.0
    assert {"leadline_depth_profile_00000001.png", "leadline_alerts.txt"} <= names


@needs("trackio")
def test_a_trackio_run_has_the_numbers_the_picture_and_the_alerts(tmp_path: Path):
    """Run in a separate process: trackio decides on import where its files go, and prints what it does."""
    code = """
import trackio
from leadline.integrations.sinks import TrackioSink
from tests.integrations.test_sinks import filled
run = trackio.init(project="toy", name="run", auto_log_gpu=False, auto_log_cpu=False)
filled(TrackioSink(run))
run.finish()
"""
    place = os.environ | {"TRACKIO_DIR": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    root = ROOT
    subprocess.run(
        [sys.executable, "-c", code], env=place, cwd=root, check=True, capture_output=True, timeout=100
    )
    with contextlib.closing(sqlite3.connect(tmp_path / "toy.db")) as store:
        rows = [json.loads(row) for (row,) in store.execute("select metrics from metrics")]
        alerts = store.execute("select title, level from alerts order by id").fetchall()
    assert {name for row in rows for name in row} == {
        f"leadline/{name}" for name in (*SUMMARY_NAMES, "depth_profile")
    }
    assert alerts == [("T801 toy", "warn"), ("T803 toy", "warn")]
    assert len([*tmp_path.rglob("*.png")]) == 1


@pytest.mark.parametrize("kind", [FunctionSink, MLflowSink, TensorBoardSink, TrackioSink, WandbSink])
def test_every_sink_has_what_a_sink_must_have(kind):
    assert all(callable(getattr(kind, name)) for name in ("numbers", "picture", "alert", "close"))
