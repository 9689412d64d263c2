"""Damaged, truncated, newer or hostile files are refused with a message; none crashes, hangs or runs code."""

from __future__ import annotations

import contextlib
import json
import math
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import leadline
from leadline.cli import main
from leadline.cli.baseline import BASELINE_SCHEMA, read_baseline
from leadline.cli.report import saved_kinds
from leadline.config import read_config
from leadline.errors import MAX_MESSAGE_LENGTH, InputError, LeadlineError, SchemaError
from leadline.lab.phase.record import Phase, Separation
from leadline.monitor.runfile.read import Run
from leadline.records import Edit, Recipe
from leadline.report.look import Look
from leadline.report.saved import formats_of
from tests.support import reports as samples
from tests.support.faults import runs
from tests.support.faults.damage import at, places, replaced, spoilt
from tests.support.lab_results import claim_results, synthetic_race
from tests.support.repairs import repair

MOST = settings.default.max_examples
PATIENT = {"deadline": None, "suppress_health_check": list(HealthCheck)}
Read = Callable[[str], object]


def show(text: str) -> None:
    """As `leadline report` does, in all formats."""
    for write in formats_of(text, Look(detail="everything"), saved_kinds()).values():
        write().encode()


def replay(text: str) -> None:
    """As `leadline.apply` does; afterwards the model is whole, or as before."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        leadline.apply(model, text, optimizer)
        leadline.undo(model)
    finally:
        assert list(model.state_dict()) == list(before)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


RECIPE = Recipe(
    leadline="1",
    model="Sequential",
    edits=(
        Edit(
            action="draw", where="0.weight", options={"kind": "normal", "size": 1.0, "seed": 3, "packed": 1}
        ),
        Edit(action="skip", where="0", options={"factor": 0.5, "learned": 4}),
        Edit(action="norm", where="2", options={"kind": "LayerNorm", "width": 4}),
        Edit(action="swap", where="1", options={"to": "gelu"}),
        Edit(action="reroute", where="", options={"calls": "relu", "to": "gelu"}),
        Edit(action="clip", options={"kind": "norm", "limit": 1.0}),
        Edit(action="decay", options={"most": 0.01, "spared": ("0.bias",)}),
        Edit(action="train", options={"names": ("0.weight",)}),
        Edit(action="warm-up", options={"steps": 3}),
        Edit(action="scale", where="2.weight", options={"factor": 0.5}),
    ),
)
PHASE = Phase(
    kind="rate",
    title="rates",
    axis="rate",
    log=True,
    values=(0.01, 0.1, 1.0),
    depths=(2, 8),
    accuracy=((0.9, 0.8, 0.0), (0.5, 0.4, 0.1)),
    reach=(12.0, 3.0, math.inf),
    separation=Separation(stated=6.0, at_stated=0.9, fitted=None, at_fitted=None, networks=6),
    power=-0.5,
    setting={"width": 8, "seeds": 1, "steps": 3.0, "data": "digits", "rates": (0.1, 1.0)},
)
RECORDS: dict[str, tuple[str, Read]] = {
    "report": (samples.whole().to_json(), show),
    "repair": (repair().to_json(), show),
    "forecast": (samples.forecast().to_json(), show),
    "recipe": (RECIPE.to_json(), replay),
    "lab": (claim_results().to_json(), show),
    "race": (synthetic_race().to_json(), show),
    "phase": (PHASE.to_json(), show),
}


def accepted(read: Read, text: str) -> bool:
    """Read without complaint; a complaint is one of ours, and says something."""
    try:
        read(text)
    except LeadlineError as error:
        return len(str(error)) < len("damaged")  # no words
    return True


@pytest.mark.parametrize("name", RECORDS)
def test_a_sound_record_is_read(name):
    assert accepted(RECORDS[name][1], RECORDS[name][0])


@pytest.mark.parametrize("name", [each for each in RECORDS if each != "recipe"])
def test_no_word_of_a_record_moves_the_cursor_or_cannot_be_written(name):
    text, _ = RECORDS[name]
    data = json.loads(text)
    words = {
        tuple(key if isinstance(key, str) else "" for key in place): place
        for place in places(data)
        if isinstance(at(data, place), str)
    }  # of entries of the same kind one
    for place in words.values():
        spoiled = json.dumps(replaced(data, place, "a\x1b[2J\ud800\u202eb"))
        with contextlib.suppress(LeadlineError):  # not any word will do here
            write = formats_of(spoiled, Look(detail="everything"), saved_kinds())["text"]
            assert not re.search("\x1b\\[2J|\ud800|\u202e", write())


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_cut_short_anywhere_is_refused(name):
    text, read = RECORDS[name]
    for length in range(0, len(text), max(1, len(text) // 150)):
        assert not accepted(read, text[:length])


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_of_a_newer_version_is_refused_with_advice(name):
    text, read = RECORDS[name]
    kind, _, version = json.loads(text)["schema"].partition("/")
    with pytest.raises(SchemaError, match="Upgrade leadline"):
        read(text.replace(f"{kind}/{version}", f"{kind}/99", 1))


HOSTILE = {
    "nested": "[" * 100_000,
    "nested objects": '{"a":' * 100_000,
    "a long number": '{"schema":' + "9" * 100_000 + "}",
    "NaN": '{"schema":NaN}',
    "no object": "[null, 1]",
    "an empty list": "[]",
    "nothing": "",
    "zeros": "\0" * 1000,
    "half a character": '{"schema":"\\ud800"}',
    "a pickle": "\x80\x04cos\nsystem\n(S'touch pwned'\ntR.",
    "a number as key of a key": '{"schema": {"schema": {}}}',
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", RECORDS)
def test_what_is_no_record_is_refused(name, kind):
    assert not accepted(RECORDS[kind][1], HOSTILE[name])


def campaign(name: str, count: int) -> None:
    text, read = RECORDS[name]

    @settings(max_examples=count, **PATIENT)
    @given(spoilt(json.loads(text)))
    def spoil(damaged: str) -> None:
        accepted(read, damaged)

    spoil()


@pytest.mark.parametrize("name", RECORDS)
def test_a_spoilt_record_is_shown_or_refused_and_never_a_crash(name):
    campaign(name, 5)


def _with_every_number(text: str, key: str, value: float) -> str:
    """The JSON with each number at `key`, anywhere in it, replaced."""

    def changed(part: Any) -> Any:
        if isinstance(part, dict):
            return {
                name: value if name == key and isinstance(each, float) else changed(each)
                for name, each in part.items()
            }
        return [changed(each) for each in part] if isinstance(part, list) else part

    return json.dumps(changed(json.loads(text)))


@pytest.mark.parametrize("key", ["backward", "median"])
def test_a_report_that_claims_a_growth_beyond_any_float_is_shown(key: str):
    layers = [layer for _ in range(6) for layer in (nn.Linear(8, 8), nn.ReLU())]
    report = leadline.check(nn.Sequential(*layers), torch.randn(8, 8), loss=lambda y: y.square().mean())
    text = report.to_json()
    spoiled = _with_every_number(text, key, 2147483648.0)
    assert json.loads(spoiled) != json.loads(text)
    show(spoiled)


@pytest.mark.parametrize("confidence", [1e308, -1e308, "NaN", "Infinity"])
def test_a_report_with_an_impossible_confidence_is_shown(confidence: float | str):
    show(json.dumps(json.loads(samples.whole().to_json()) | {"confidence": confidence}))


def test_a_report_whose_blocks_belong_to_no_stream_is_shown():
    spoiled = json.loads(samples.whole().to_json())
    assert spoiled["profile"]["blocks"]
    spoiled["profile"]["streams"] = []
    show(json.dumps(spoiled))


def test_a_run_with_the_largest_step_is_read(tmp_path):
    path = tmp_path / "run.leadline"
    path.write_bytes(runs.good(tmp_path))
    changes = [("cell", table, "step", 2**63 - 1, 3) for table in ("step", "entry")]
    runs.spoil(path, changes)
    for read in runs.READERS.values():
        accepted(read, path)
    with Run(path) as run:
        assert run.scalars("loss", 2**63 - 1) == ([2**63 - 1], [-1.0])


def test_a_forecast_without_depths_is_refused():
    spoiled = json.loads(samples.forecast().to_json()) | {"depths": []}
    with pytest.raises(SchemaError, match="depths"):
        show(json.dumps(spoiled))


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", RECORDS)
def test_many_spoilt_records_are_shown_or_refused_and_never_a_crash(name):
    campaign(name, 2 * MOST)


def spoil_runs(place: Path, count: int) -> None:
    content, number = runs.good(place), iter(range(10**9))

    @settings(max_examples=count, **PATIENT)
    @given(runs.CHANGES)
    def spoil(changes: list[tuple[str, ...]]) -> None:
        path = place / f"{next(number)}.leadline"
        path.write_bytes(content)
        runs.spoil(path, changes)
        for read in runs.READERS.values():
            accepted(read, path)

    spoil()


@pytest.mark.filterwarnings("ignore::UserWarning")  # a file that cannot be written causes one warning
def test_a_spoilt_run_is_read_or_refused_and_never_a_crash(tmp_path):
    spoil_runs(tmp_path, 4)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_many_spoilt_runs_are_read_or_refused_and_never_a_crash(tmp_path):
    spoil_runs(tmp_path, MOST)


@pytest.mark.parametrize(
    "structure", [each for each in runs.STRUCTURES if "VIEW" in each or "TRIGGER" in each]
)
def test_a_run_file_that_computes_something_is_refused_for_reading_and_for_writing(tmp_path, structure):
    path = tmp_path / "a.leadline"
    path.write_bytes(runs.good(tmp_path))
    runs.spoil(path, [("structure", structure.format("note"))])
    before = path.read_bytes()
    for read in runs.READERS.values():
        with pytest.raises(SchemaError, match="not a run file as leadline writes it"):
            read(path)
    assert path.read_bytes() == before


@pytest.mark.slow
def test_a_run_cut_short_at_every_length_is_read_or_refused(tmp_path):
    content, path = runs.good(tmp_path), tmp_path / "cut.leadline"
    for length in range(0, len(content), 97):
        path.write_bytes(content[:length])
        accepted(runs.READERS["judge"], path)


CONFIGS = st.text(max_size=60) | st.sampled_from(
    [
        "[tool.leadline]\ntargets = 1",
        "[tool.leadline]\nselect = " + "[" * 3000,
        "[tool.leadline]\nfail-on = 1e999",
        "[tool.leadline]\nignore = [" + '"F",' * 5000 + "]",
        "[tool]\nleadline = []",
        "[tool.leadline.targets.'\\u001b']\nselect = 3",
        "[tool.leadline]\n" + "x" * 50_000 + " = 1",
    ]
)


@settings(max_examples=15, **PATIENT)
@given(CONFIGS)
def test_a_damaged_config_is_refused_with_a_message(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("config", numbered=True) / "pyproject.toml"
    path.write_text(text, encoding="utf-8", errors="replace")
    accepted(read_config, path)


@pytest.mark.parametrize(
    "text", [*HOSTILE.values(), json.dumps({"schema": BASELINE_SCHEMA, "findings": [{}]})]
)
def test_what_is_no_baseline_is_refused(tmp_path, text):
    path = tmp_path / "known.json"
    path.write_text(text)
    with pytest.raises(LeadlineError):
        read_baseline(path)


LOGS = (
    "", "\0\0", "step,loss\n", "step,loss\n1,nan\n2,inf\n3,-1e999\n", "step,loss\n" + "9" * 400 + ",1\n", '"step',
    "loss\nx\ny\n", "step,loss\n1,1\n1,2\n0,3\n", "step,loss\n-5,1\n5,\n", "step,loss\n" + "1," * 20_000 + "\n",
    "\ufeffstep;loss\n1;2\n", "step,loss\n1e300,1\n", "step,loss\nnan,1\n", "step,loss\n1,0x10\n2,1_000\n",
)  # fmt: skip


@pytest.mark.parametrize("text", LOGS, ids=range(len(LOGS)))
def test_a_hostile_log_is_judged_or_refused(tmp_path, capsys, text):
    path = tmp_path / "log.csv"
    path.write_text(text)
    code = main(["check", str(path)])
    assert code in (0, 1, 2, 3)
    assert "bug in leadline" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_config_of_a_model_cannot_name_what_is_no_model(tmp_path):
    from leadline.tracer.weightless.configs import model_class, read_config

    config = read_config({"model_type": "gpt2", "architectures": ["HfArgumentParser"], "n_layer": 1})
    assert model_class(config).__name__ == "GPT2LMHeadModel"
    with pytest.raises(InputError):
        read_config({"model_type": "custom", "auto_map": {"AutoConfig": "evil.Config"}})


LIMITED = """
import resource, sys
from leadline.cli import main
main(["--version"])
room = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + 600 * 2**20
import leadline.cli.report
resource.setrlimit(resource.RLIMIT_DATA, (room, room))
sys.exit(main(["report", sys.argv[1], "--format", "text"]))
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_DATA"), reason="memory cannot be limited here")
@pytest.mark.parametrize(
    "text", ["[" * 5_000_000, '{"schema":"' + "x" * 20_000_000 + '"}'], ids=["nested", "long"]
)
def test_a_large_hostile_file_is_refused_within_bounded_memory(tmp_path, text):
    path = tmp_path / "large.json"
    path.write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error:")
    assert len(done.stderr) < 2 * MAX_MESSAGE_LENGTH
