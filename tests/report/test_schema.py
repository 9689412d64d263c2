"""The published schema accepts every report, and refuses what is none."""

import json

import jsonschema
import pytest

from leadline.report.saved import report_schema
from tests.support import reports as samples

REPORTS = [
    getattr(samples, name)() for name in ("sick", "healthy", "broken", "reviewed", "hostile", "thousand")
]


@pytest.fixture(scope="module")
def validator():
    jsonschema.Draft202012Validator.check_schema(report_schema())
    return jsonschema.Draft202012Validator(report_schema())


@pytest.mark.parametrize("report", REPORTS, ids=repr)
def test_every_report_fits_the_schema(validator, report):
    assert list(validator.iter_errors(json.loads(report.to_json()))) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [("verdict", "perhaps"), ("schema", "leadline.report/9"), ("findings", {}), ("profile", None)],
)
def test_what_is_no_report_does_not_fit(validator, key, value):
    data = json.loads(samples.sick().to_json())
    assert list(validator.iter_errors({**data, key: value}))


def test_a_number_may_be_spelled_but_not_any_word_is_a_number(validator):
    data = json.loads(samples.sick().to_json())
    for value, fits in (("NaN", True), ("-Infinity", True), (1.5, True), (None, True), ("high", False)):
        data["profile"]["loss"] = value
        assert validator.is_valid(data) == fits
