"""Findings form a tree: what explains what, and what does not."""

from __future__ import annotations

import dataclasses

from leadline.checks import model_checks
from leadline.checks._check import Check, check
from leadline.checks._diagnosis import link_causes
from leadline.checks._examples import geometric
from leadline.records import Finding
from leadline.report.verdict import rooted


def made(code: str, *explains: str) -> Check:
    @check(
        code=code,
        name="x",
        since="0.1.0",
        explains=explains,
        sick=geometric(blocks=4),
        healthy=geometric(blocks=4),
    )
    def look(profile):
        return []

    return look


def finding(code: str, severity: str = "warning", layers: tuple[int, int] | None = None) -> Finding:
    return Finding(code=code, name="x", severity=severity, where="", message="", evidence={}, layers=layers)


def causes(findings: list[Finding], checks: list[Check]) -> dict[str, str]:
    return {each.code: each.explained_by for each in link_causes(findings, checks)}


CHECKS = [made("I301", "F101", "B201"), made("F101", "B201"), made("B201")]


def test_a_consequence_is_put_under_the_root_rather_than_under_another_consequence():
    found = causes([finding("B201"), finding("F101"), finding("I301")], CHECKS)
    assert found == {"B201": "I301", "F101": "I301", "I301": ""}


def test_findings_about_other_blocks_are_not_explained():
    apart = [finding("B201", layers=(8, 9)), finding("F101", layers=(0, 3))]
    assert causes(apart, CHECKS) == {"B201": "", "F101": ""}
    together = [finding("B201", layers=(3, 9)), finding("F101", layers=(0, 3))]
    assert causes(together, CHECKS) == {"B201": "F101", "F101": ""}


def test_a_note_does_not_explain_an_error():
    assert causes([finding("B201", "error"), finding("I301", "info")], CHECKS)["B201"] == ""


def test_the_tree_with_the_worst_finding_comes_first_and_no_finding_is_lost():
    found = link_causes([finding("B201", "error"), finding("U999"), finding("I301")], CHECKS)
    trees = rooted(found)
    assert [root.code for root, _ in trees] == ["I301", "U999"]
    assert sum(1 + len(below) for _, below in trees) == len(found)


def cycle(checks: list[Check]) -> list[str]:
    """Codes that explain each other in a circle."""
    graph = {each.code: set(each.explains) for each in checks}
    while free := [code for code, below in graph.items() if not below & graph.keys()]:
        for code in free:
            del graph[code]
    return sorted(graph)


def test_no_built_in_checks_explain_each_other_in_a_circle():
    assert cycle(list(model_checks())) == []


def test_a_circle_is_detected():
    turned = dataclasses.replace(CHECKS[2], explains=("I301",))
    assert cycle([*CHECKS[:2], turned]) == ["B201", "F101", "I301"]


def test_every_code_that_a_check_explains_exists():
    codes = {each.code for each in model_checks()}
    assert {code for each in model_checks() for code in each.explains} - codes == set()
