"""Records survive JSON without loss for any numbers and names, and refuse what they cannot read."""

from __future__ import annotations

import copy
import json
import math
import pickle
import typing

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leadline import records
from leadline.errors import SchemaError
from leadline.records import TRACE_SCHEMA, Gap, Rehearsal, Stats, Trace, Value
from leadline.records.codec import Unsaved
from leadline.records.report import REPORT_SCHEMA, Report
from tests.support import reports

HOSTILE = [
    "",
    "<script>alert(1)</script>",
    'a"b\\c',
    "line\nbreak",
    "nul\0",
    "=HYPERLINK()",
    "σ²χ",
    "😀",
    "NaN",
    "null",
    "-0.0",
]
NAMES = st.one_of(st.sampled_from(HOSTILE), st.text(st.characters(exclude_categories=["Cs"]), max_size=8))
ODD_FLOATS = st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 0.0, 5e-324, 1.7976931348623157e308, 0.1])
JSON = st.recursive(  # what may stand where a record allows anything
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=4,
)
SCHEMAS = {Trace: TRACE_SCHEMA, Report: REPORT_SCHEMA}


def arbitrary(kind: object) -> st.SearchStrategy[object]:
    """Any value of a record type, derived from its annotations, so that a new field is covered by itself."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return st.tuples(*map(arbitrary, arguments))
    if origin is tuple:
        return st.lists(arbitrary(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(*map(arbitrary, arguments), max_size=3)
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if arguments:
        return st.one_of(*map(arbitrary, arguments))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind)
        saved = [name for name in kind.__struct_fields__ if name not in ("schema", "unsaved_trace")]
        fields = {name: arbitrary(hints[name]) for name in saved}
        return st.builds(kind, **fields)
    return {
        float: st.one_of(ODD_FLOATS, st.floats()),
        int: st.integers(-(2**53), 2**53),
        str: NAMES,
        bool: st.booleans(),
        type(None): st.none(),
        typing.Any: JSON,
    }[kind]


def same(one: object, other: object) -> bool:
    """Equal bit for bit in meaning: NaN is NaN, and -0.0 is not 0.0. `repr` of floats tells all of these apart."""
    return repr(msgspec.to_builtins(one)) == repr(msgspec.to_builtins(other)) and type(one) is type(other)


@pytest.mark.parametrize("kind", SCHEMAS, ids=lambda kind: kind.__name__)
@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_a_record_is_the_same_after_json(kind: type, data: st.DataObject):
    record = data.draw(arbitrary(kind))
    text = record.to_json()
    assert same(kind.from_json(text), record)


@settings(max_examples=20)
@given(data=st.data())
def test_the_json_is_strict_and_holds_no_bare_nan(data: st.DataObject):
    value = data.draw(arbitrary(Stats))
    json.loads(records.encode(value), parse_constant=lambda word: pytest.fail(f"bare {word} in JSON"))


def test_the_trace_of_a_report_is_neither_saved_nor_compared_but_travels_with_it():
    report = msgspec.structs.replace(reports.sick(), unsaved_trace=Unsaved(trace()))
    read = Report.from_json(report.to_json())
    assert report.trace == trace()
    assert read.trace is None
    assert "unsaved" not in report.to_json()
    assert report == read
    assert report != msgspec.structs.replace(report, target="another")
    copies = (copy.deepcopy(report), pickle.loads(pickle.dumps(report)), msgspec.structs.replace(report))
    assert all(each.trace is not None for each in copies)


def test_a_value_that_no_record_holds_cannot_be_encoded():
    with pytest.raises(NotImplementedError, match="cannot hold"):
        records.encode(msgspec.structs.replace(reports.sick(), target=object()))


def trace(**changes: object) -> Trace:
    fields = {
        "model": "Net",
        "torch": "2.13",
        "device": "cpu",
        "training": True,
        "optimizer": None,
        "loss": math.nan,
        "loss_value": 0,
        "ops": (),
        "values": (Value(id=0, shape=(), dtype="float32", forward=stats(ms=math.inf)),),
        "parameters": (),
        "modules": (),
        "gaps": (Gap(what="gradient", why="none", where=("a.b",)),),
    }
    return Trace(**{**fields, **changes})


def stats(**changes: float) -> Stats:
    return Stats(
        **{"count": 4, "mean": -0.0, "ms": 1.0, "abs_max": 2.0, "zero_share": 0.0, "non_finite": 0, **changes}
    )


def test_what_was_not_measured_stays_apart_from_nan():
    found = Trace.from_json(trace(loss=None).to_json())
    assert found.loss is None
    assert math.isnan(Trace.from_json(trace().to_json()).loss)


@pytest.mark.parametrize("name", ["NaN", "Infinity", "null", "true", "3"])
def test_a_name_that_spells_something_else_stays_a_name(name: str):
    found = Trace.from_json(trace(model=name, device=name).to_json())
    assert (found.model, found.device) == (name, name)


@pytest.mark.parametrize("cut", range(0, len(trace().to_json()), 29))
def test_a_truncated_file_is_refused_with_a_schema_error(cut: int):
    with pytest.raises(SchemaError):
        Trace.from_json(trace().to_json()[:cut])


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "3", '"leadline.trace/1"', "{}", '{"schema": 1}', "not json", "\0", "{" * 9]
)
def test_foreign_text_is_refused_with_a_schema_error(text: str):
    with pytest.raises(SchemaError):
        Trace.from_json(text)


def test_json_nested_beyond_the_recursion_limit_is_refused_with_a_schema_error():
    with pytest.raises(SchemaError):
        Trace.from_json("[" * 100_000)


def test_a_newer_schema_is_refused_and_the_error_says_to_upgrade():
    with pytest.raises(SchemaError, match=r"leadline\.trace/99.*[Uu]pgrade"):
        Trace.from_json(trace(schema="leadline.trace/99").to_json())


def test_a_report_is_not_read_as_a_trace():
    with pytest.raises(SchemaError, match="another kind"):
        Trace.from_json(json.dumps({"schema": REPORT_SCHEMA}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ops", 3),
        ("loss", "high"),
        ("values", [{"id": "x"}]),
        ("model", None),
        ("training", "perhaps"),
        ("gaps", [[]]),
    ],
)
def test_a_damaged_field_is_refused_and_the_error_says_where(field: str, value: object):
    data = json.loads(trace().to_json())
    data[field] = value
    with pytest.raises(SchemaError, match=field):
        Trace.from_json(json.dumps(data))


@pytest.mark.parametrize("field", ["model", "ops", "loss"])
def test_a_missing_field_is_refused(field: str):
    data = json.loads(trace().to_json())
    del data[field]
    with pytest.raises(SchemaError, match=field):
        Trace.from_json(json.dumps(data))


@given(st.lists(st.one_of(ODD_FLOATS, st.floats()), min_size=1, max_size=4))
def test_derived_statistics_of_any_numbers_never_raise_and_a_variance_is_never_negative(numbers: list[float]):
    count = len(numbers)
    found = stats(count=count, mean=sum(numbers) / count, ms=sum(n * n for n in numbers) / count)
    assert not found.var < 0
    assert math.isnan(found.rms) or found.rms >= 0


@pytest.mark.parametrize(("one", "other"), [(0.0, -0.0), (math.nan, math.inf), (1.0, 1.0000000000000002)])
def test_the_comparison_sees_the_smallest_change(one: float, other: float):
    assert same(stats(mean=one), stats(mean=one))
    assert not same(stats(mean=one), stats(mean=other))


def test_a_rehearsal_knows_its_relative_fall_only_from_a_positive_loss():
    assert Rehearsal(losses=(4.0, 1.0)).relative_fall == 0.75
    assert Rehearsal(losses=(4.0, math.inf)).relative_fall == -math.inf
    assert Rehearsal(losses=(0.0, -1.0)).relative_fall is None


def test_steps_to_learn_are_none_after_learning_and_endless_without_a_pace():
    assert Rehearsal(losses=(2.0, 1.0, 0.1), constant=2.0).steps_to_learn == 0.0
    assert 0 < Rehearsal(losses=(2.0, 1.99, 1.98), constant=2.0).steps_to_learn < math.inf
    assert Rehearsal(losses=(2.0, 2.0, 2.0), constant=2.0).steps_to_learn == math.inf
