"""A page receives everything once, then only what is new; a page that reconnects continues where it was."""

from __future__ import annotations

import base64
import json
import math
import os
from array import array

import pytest

from leadline.errors import InputError
from leadline.monitor.live import run_list
from leadline.monitor.live.messages import MAX_COLUMNS, MAX_NEW_COLUMNS, MAX_POINTS, full_message
from leadline.monitor.live.run_list import MAX_RUNS, PageCursor, RunList
from leadline.monitor.runfile import Run
from tests.support.live_server import BLOCKS, alert, begin, event, put


def columns_of(vector):
    numbers = array("f", base64.b64decode(vector["data"]))
    rows = vector["rows"]
    return [numbers[start : start + rows] for start in range(0, len(numbers), rows)]


def test_the_first_message_holds_the_whole_run(serve, run):
    with serve(run).listen() as listener:
        message = listener.next()
    assert message["whole"]
    assert message["scalars"]["loss"] == [[*range(10)], [3.0 - step / 100 for step in range(10)]]
    assert message["header"]["state"] == "ended"
    assert message["header"]["overhead"] == pytest.approx(0.01)
    assert message["header"]["budget"] == 0.01
    assert message["axes"]["blocks"]["labels"] == [f"block {place}" for place in range(BLOCKS)]
    first = columns_of(message["vectors"]["grad_norm"])[0]
    assert first[:2].tolist() == [1.0, 2.0]
    assert math.isnan(first[2])
    assert first[3] == -1.0


def test_later_steps_are_sent_as_an_update(serve, tmp_path):
    path = tmp_path / "run.leadline"
    writer = begin(path)
    with serve(path).listen() as listener:
        assert listener.next()["header"]["state"] == "writing"
        put(writer, 10)
        writer.alert(alert(10))
        writer.event(event(10))
        writer.flush()
        message = listener.next()
        assert not message["whole"]
        assert "axes" not in message
        assert message["scalars"]["loss"][0] == [10]
        assert message["vectors"]["grad_norm"]["steps"] == [10]
        assert [each["code"] for each in message["standing"]] == ["T801"]
        assert [each["message"] for each in message["events"]] == ["clipped"]
        writer.close()
        assert listener.next()["header"]["state"] == "ended"


@pytest.mark.parametrize("by_header", [True, False])
def test_a_page_that_reconnects_gets_only_what_it_missed_also_from_another_server(serve, tmp_path, by_header):
    path = tmp_path / "run.leadline"
    writer = begin(path)
    first = serve(path)
    with first.listen() as listener:
        listener.next()
        token = listener.token
    first.stop()
    put(writer, 10)
    writer.flush()
    with serve(path).listen(token, by_header=by_header) as listener:
        message = listener.next()
    writer.close()
    assert not message["whole"]
    assert message["scalars"]["loss"][0] == [10]


@pytest.mark.parametrize("token", ["", "nonsense", "x.1.2.3", "{}.99999", "{}.-1", "{}." + "9" * 30, "{}"])
def test_an_invalid_token_gets_a_full_message(run, token):
    runs = RunList([run])
    name = runs.token([PageCursor()]).split(".")[0]
    (cursor,) = runs.cursors(token.format(name))
    message, _ = runs.runs[0].update(cursor)
    runs.close()
    assert message["whole"]


def test_a_page_that_missed_many_steps_gets_a_full_message(run, monkeypatch):
    monkeypatch.setattr(run_list, "MAX_UPDATE_ENTRIES", 3)
    runs = RunList([run])
    message, _ = runs.runs[0].update(PageCursor(cursor=1))
    near, _ = runs.runs[0].update(PageCursor(cursor=runs.runs[0].read().cursor - 3))
    runs.close()
    assert message["whole"]
    assert not near["whole"]


def test_a_resumed_run_is_sent_again_because_its_steps_may_have_changed(tmp_path):
    path = tmp_path / "run.leadline"
    begin(path).close()
    runs = RunList([path])
    _, cursor = runs.runs[0].update(PageCursor())
    with begin(path, 0) as writer:
        put(writer, 5, loss=9.0)
        writer.flush()
        message, _ = runs.runs[0].update(cursor)
    runs.close()
    assert message["whole"]
    assert message["scalars"]["loss"][1][5] == 9.0


def test_a_replaced_file_is_reopened_and_a_deleted_one_stays_open(tmp_path):
    path, other = tmp_path / "run.leadline", tmp_path / "other.leadline"
    begin(path).close()
    begin(other, 3, model="Other").close()
    runs = RunList([path])
    _, cursor = runs.runs[0].update(PageCursor())
    os.replace(other, path)
    message, cursor = runs.runs[0].update(cursor)
    assert message["header"]["model"] == "Other"
    path.unlink()
    assert runs.runs[0].update(cursor) == (None, cursor)
    runs.close()


def test_a_file_replaced_by_something_else_is_reported_once(tmp_path):
    path = tmp_path / "run.leadline"
    begin(path).close()
    runs = RunList([path])
    _, cursor = runs.runs[0].update(PageCursor())
    (tmp_path / "text").write_text("no database" * 100)
    os.replace(tmp_path / "text", path)
    message, cursor = runs.runs[0].update(cursor)
    assert "not a run file" in message["trouble"]
    assert runs.runs[0].update(cursor)[0] is None
    runs.close()


def test_several_runs_share_one_stream(serve, tmp_path):
    paths = [tmp_path / f"{name}.leadline" for name in "ab"]
    for path in paths:
        begin(path).close()
    with serve(*paths).listen() as listener:
        message = [listener.next(), listener.next()]
    assert [(each["run"], each["header"]["file"]) for each in message] == [
        (0, "a.leadline"),
        (1, "b.leadline"),
    ]


def test_the_size_of_a_full_message_does_not_grow_with_the_run(tmp_path):
    path = tmp_path / "run.leadline"
    begin(path, 5000).close()
    with Run(path) as run:
        message = full_message(run)
        runs = RunList([path])
        late, _ = runs.runs[0].update(PageCursor(cursor=run.cursor - 1000))
        runs.close()
    steps, values = message["scalars"]["loss"]
    assert len(steps) <= MAX_POINTS + 2
    assert (steps[0], steps[-1], values[-1]) == (0, 4999, 3.0 - 49.99)
    shown = message["vectors"]["grad_norm"]["steps"]
    assert len(shown) == MAX_COLUMNS
    assert (shown[0], shown[-1]) == (0, 4999)
    assert len(late["vectors"]["grad_norm"]["steps"]) == MAX_NEW_COLUMNS


def test_zooming_in_returns_the_steps_that_were_thinned(tmp_path, serve):
    path = tmp_path / "run.leadline"
    begin(path, 5000).close()
    served = serve(path)
    message = json.loads(served.ask("/runs/0/window?first=1000&last=1020")[2])
    assert message["scalars"]["loss"][0] == [*range(1000, 1021)]
    assert message["vectors"]["grad_norm"]["steps"] == [*range(1000, 1021)]
    assert not message["whole"]
    assert served.ask("/runs/0/window?first=1000")[0] == 400


def test_names_that_could_hide_something_are_spelled_out(tmp_path):
    path = tmp_path / "run.leadline"
    begin(path, model="a\x1b[31m\u202eb").close()
    with Run(path) as run:
        assert full_message(run)["header"]["model"] == "a\\x1b[31m\\u202eb"


@pytest.mark.parametrize("count", [0, MAX_RUNS + 1])
def test_no_run_and_too_many_are_refused(run, count):
    with pytest.raises(InputError, match="1 to 6 run files"):
        RunList([run] * count)
