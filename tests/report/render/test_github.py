"""github: annotations that the runner reads, at most ten of a level, and none that a name could forge."""

import pytest
from msgspec.structs import replace

from leadline.report.render.github import MAX_ANNOTATIONS, render
from tests.support import reports as samples
from tests.support.workflow import commands

SHAPE = samples.profile([1.0], [1.0])


def annotations(*reports):
    return commands(render(reports))


def test_severities_become_the_levels_of_github():
    found = [
        samples.finding(code=f"F10{i}", severity=each) for i, each in enumerate(("info", "warning", "error"))
    ]
    assert {each.name for each in annotations(samples.report(SHAPE, *found))} == {
        "notice",
        "warning",
        "error",
    }


def test_an_annotation_stands_at_the_class_of_the_module():
    first = annotations(samples.reviewed())[0]
    assert first.properties == {
        "file": "src/a b.py",
        "line": "3",
        "title": "B201 gradient-decay (src/nets.py:make)",
    }


def test_a_rule_that_speaks_of_many_layers_is_one_annotation_that_names_them_all():
    found = [samples.finding(where=f"layers.{i}", message=f"dead {i}") for i in range(30)]
    (only,) = annotations(samples.report(SHAPE, *found))
    assert only.message.splitlines() == [f"layers.{i}: dead {i}" for i in range(30)]


@pytest.mark.parametrize("targets", [1, 3])
def test_more_rules_than_github_shows_end_in_one_that_lists_the_rest(targets):
    found = [samples.finding(code=f"F{i}", message=f"message {i}") for i in range(100, 125)]
    shown = annotations(*[samples.report(SHAPE, *found)] * targets)
    assert len(shown) == MAX_ANNOTATIONS
    assert shown[-1].message.count("\n") + MAX_ANNOTATIONS == 25 * targets
    assert all(any(f"message {i}" in each.message for each in shown) for i in range(100, 125))


def test_as_many_rules_as_github_shows_are_all_shown():
    found = [samples.finding(code=f"F{i}") for i in range(100, 100 + MAX_ANNOTATIONS)]
    assert [each.properties["title"] for each in annotations(samples.report(SHAPE, *found))] == [
        f"{each.code} {each.name}" for each in found
    ]


def test_what_is_known_or_ignored_is_counted_in_the_log_and_not_annotated():
    text = render([samples.reviewed()])
    head, *rest = text.splitlines()
    assert "(1 finding ignored: F101)" in head
    assert "1 known finding" in head
    assert not any("F101" in line or "F102" in line for line in rest)


def test_undecided_is_a_warning():
    (only,) = annotations(samples.report(samples.profile([], []), verdict="undecided"))
    assert (only.name, only.properties["title"]) == ("warning", "UNDECIDED")


@pytest.mark.parametrize("name", samples.HOSTILE_NAMES, ids=range(len(samples.HOSTILE_NAMES)))
def test_no_name_can_issue_a_command(name):
    report = samples.report(SHAPE, samples.finding(where=name, message=name, name=name))
    found = commands(render([replace(report, target=name)]))
    assert [each.name for each in found] == ["error"]
    assert set(found[0].properties) == {"title"}


def test_the_reader_in_these_tests_sees_a_forged_command():
    assert commands("::error title=a%3Ab::x\n")[0].properties == {"title": "a:b"}
    assert [each.name for each in commands("text ::error::x\n  ::warning::forged\n")] == ["warning"]
    with pytest.raises(AssertionError):
        commands("hidden ##[error]x\n")
