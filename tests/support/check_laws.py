"""Laws that every check keeps: its names, its page, its examples, and the wording of what it says."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from pathlib import Path
from typing import Protocol

import leadline
from leadline.checks import Check
from leadline.text import first_clause

HEADINGS = ["What it measures", "Why it hurts", "When it is wrong", "References"]
FAMILIES = {"F": "1", "B": "2", "I": "3", "R": "4", "U": "5", "W": "6", "N": "7", "T": "8", "D": "9"}
CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"
NOT_IMPERATIVE = {"A", "An", "If", "It", "The", "There", "This", "You"}
NOT_AMERICAN = re.compile(
    r"(optimi|initiali|normali|regulari|standardi)s|behaviour|neighbour|\bcentre|\btowards\b|\bbehind\b|\bwhatever\b",
    re.IGNORECASE,
)


class Text(Protocol):
    """A symptom, a finding or an alert."""

    @property
    def message(self) -> str: ...
    @property
    def action(self) -> str: ...


def released_versions() -> set[str]:
    """The versions of the changelog, and the one that is being written."""
    headings = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", CHANGELOG.read_text(), flags=re.MULTILINE)
    return {leadline.__version__, *headings}


def check_violations(each: Check) -> list[str]:
    """Which laws a check breaks."""
    function = each.name.replace("-", "_")
    broken = {
        "code": not re.fullmatch(r"[FBIRUWNTD]\d{3}", each.code) or FAMILIES[each.code[0]] != each.code[1],
        "name": not re.fullmatch(r"[a-z]+(-[a-z]+)*", each.name),
        "function is not named after the check": each.look.__name__ != function,
        "file is not named after the check": each.look.__module__.rpartition(".")[2] != function,
        "since is not a version": each.since not in released_versions(),
        "headings": re.findall(r"^## (.+)$", each.doc, flags=re.MULTILINE) != HEADINGS,
        "summary": not each.summary.endswith(".") or len(each.summary) > 100,
        "page is not in American English": bool(NOT_AMERICAN.search(each.doc.partition("## References")[0])),
        "sick example has no finding": not list(each(each.sick)),
        "healthy example has a finding": bool(list(each(each.healthy))),
    }
    return [law for law, is_broken in broken.items() if is_broken]


def wording_violations(text: Text) -> list[str]:
    """Which laws the text of a finding breaks: what was measured, and what to do."""
    message, action = text.message, text.action
    first_word = action.split(" ")[0]
    similarity = SequenceMatcher(None, message.lower(), action.lower()).ratio()
    broken = {
        "message has no number": not re.search(r"\d", message),
        "message is not a clause": message.endswith(".") or message[:1].isupper(),
        "message says 'a step' for 'per step'": bool(re.search(r"[\d%] a (step|block|layer)\b", message)),
        "first clause is not a reason by itself": len(first_clause(message).split()) < 4,
        "action is not one sentence": not re.fullmatch(r"[A-Z][^\n]*[^.]\.", action)
        or bool(re.search(r"\. [A-Z]", action)),
        "action is not imperative": not re.fullmatch(r"[A-Z][a-z]+", first_word)
        or first_word in NOT_IMPERATIVE,
        "action repeats the message": similarity > 0.8 or first_clause(message).lower() in action.lower(),
        "text is not in American English": bool(NOT_AMERICAN.search(f"{message} {action}")),
    }
    return [law for law, is_broken in broken.items() if is_broken]
