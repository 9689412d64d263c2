"""How the GitHub runner reads a log: a second, independent reading of its escapes, for the tests."""

from __future__ import annotations

import re
from typing import NamedTuple

ESCAPES = {"%25": "%", "%0D": "\r", "%0A": "\n", "%3A": ":", "%2C": ","}


class Command(NamedTuple):
    name: str
    properties: dict[str, str]
    message: str


def commands(log: str) -> list[Command]:
    """Every workflow command in the log. An old-style command anywhere in another line is an error."""
    found = []
    for line in log.splitlines():
        parsed = re.fullmatch(r"\s*::([\w-]+)(?: ([^:]*(?::(?!:)[^:]*)*))?::(.*)", line)
        if parsed:
            pairs = [pair.split("=", 1) for pair in (parsed[2] or "").split(",") if pair]
            properties = {key: unescaped(value) for key, value in pairs}
            found.append(Command(parsed[1], properties, unescaped(parsed[3])))
        elif "##[" in line:
            raise AssertionError(f"an old-style command: {line!r}")
    return found


def unescaped(text: str) -> str:
    return re.sub("|".join(ESCAPES), lambda match: ESCAPES[match[0]], text)
