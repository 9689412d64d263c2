"""Commands that pages show, in `sh` blocks and inline, and whether what they name exists."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec

import click

from leadline.cli import leadline
from tests.support import ROOT

BLOCK = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
SHELL_OPERATOR = re.compile(r" (?:\||>>?|&&) ")
PROGRAMS = ("leadline", "pip", "python", "make", "torchrun", "ssh", ".ci/run")

HOURS = "takes hours: it made the results that the page quotes"
MINUTES = "takes minutes to hours; tests/lab runs smaller ones"
SERVES = "serves until it is stopped; tests/monitor/live asks the same server"
AGENTS = "tests/docs/test_agent_pages.py and tests/cli/test_mcp.py run it on programs of their own"
SETS_UP = "builds an environment or runs the tests themselves; .ci/run calls it"
PARSED_ONLY = {
    "pip install .": SETS_UP,
    "pip install '.[live]'": SETS_UP,
    "pip install '.[mcp]'": SETS_UP,
    "leadline mcp train.py": "serves until it is stopped; tests/cli/test_mcp.py asks the same server",
    "leadline check train.py --format agent": AGENTS,
    "leadline check train.py --steps 64 --format agent": AGENTS,
    "leadline fix train.py --format agent": AGENTS,
    "make demo": SETS_UP,
    "make test": SETS_UP,
    "make test-long": SETS_UP,
    ".ci/run": SETS_UP,
    "leadline view run.leadline": SERVES,
    "leadline view monday.leadline tuesday.leadline": SERVES,
    "ssh -L 8765:127.0.0.1:8765 machine leadline view --no-open --port 8765 run.leadline": SERVES,
    "torchrun --nproc-per-node 2 examples/distributed_watch.py": "tests/docs/test_examples.py starts it",
    "torchrun --nproc-per-node 2 examples/distributed_watch.py --shard": "tests/docs/test_examples.py starts it",
    "leadline run examples/train.py --steps 200": "tests/runner/test_run_page.py runs it",
    "leadline check config.json": "howto/hugging-face.md runs it on the config that it writes",
    "leadline check --no-weights train.py:make_case": "tests/cli/test_no_weights.py runs it on its own program",
    "leadline check events.out.tfevents.1700000000.host": "names a file of another program",
    "leadline lab run --all --html lab.html": HOURS,
    "leadline phase gain --html gain.html": MINUTES,
    "leadline phase rate --depths 4,16,64 --steps 100": MINUTES,
    "leadline phase residual --store cells.jsonl --workers 8": MINUTES,
    "leadline race pre post deepnorm keel --depths 12,48 --store race.jsonl --html race.html": MINUTES,
    "leadline race keel keel+groups --depths 48": MINUTES,
    "leadline race --data images --seeds 5 --workers 8": MINUTES,
    "leadline race --executor ray --address auto --depths 200": MINUTES,
    "python -m benchmarks.atlas truth": HOURS,
    "python -m benchmarks.atlas check": HOURS,
    "python -m benchmarks.atlas fit": MINUTES,
    "python -m benchmarks.atlas repair": HOURS,
    "python -m benchmarks.atlas render": MINUTES,
    "python -m benchmarks.first_hour truth": HOURS,
    "python -m benchmarks.first_hour check": HOURS,
    "python -m benchmarks.first_hour check --several": HOURS,
    "python -m benchmarks.first_hour programs": HOURS,
    "python -m benchmarks.first_hour render": HOURS,
    "python -m benchmarks.time_machine list": MINUTES,
    "python -m benchmarks.time_machine run": HOURS,
    "python -m benchmarks.time_machine run --later": MINUTES,
    "python -m benchmarks.time_machine sweep": HOURS,
    "python -m benchmarks.time_machine search": HOURS,
    "python -m benchmarks.time_machine show": MINUTES,
    "python -m benchmarks.time_machine render": MINUTES,
    "python -m benchmarks.wiring list": MINUTES,
    "python -m benchmarks.wiring check": MINUTES,
    "python -m benchmarks.wiring check --part sixth-set": MINUTES,
    "python -m benchmarks.wiring misses": MINUTES,
    "python -m benchmarks.wiring cost": MINUTES,
    "python -m benchmarks.wiring render": MINUTES,
    "python -m benchmarks.wiring.silence": HOURS,
    "python -m benchmarks.zoo": HOURS,
    "python -m benchmarks.zoo --only hf/bert": HOURS,
}
"""Commands in blocks that no test runs, and why. They are still parsed, and what they name must exist."""


def commands(block: str) -> list[str]:
    """The commands of an `sh` block, without comments and blank lines."""
    lines = [shlex.join(shlex.split(line, comments=True)) for line in block.splitlines()]
    return [line for line in lines if line]


def block_commands(text: str) -> Iterator[str]:
    """Yield the commands in the `sh` blocks of a page."""
    for language, _, block in BLOCK.findall(text):
        if language == "sh":
            yield from commands(block)


def inline_commands(text: str) -> Iterator[str]:
    """Yield the commands in the sentences of a page, each on one line."""
    for code in INLINE_CODE.findall(BLOCK.sub("", text)):
        line = " ".join(code.split())
        if line.startswith(PROGRAMS) and " " in line and not line.startswith("leadline."):
            yield line


def unlabeled_commands(text: str) -> Iterator[str]:
    """Yield lines that begin with a program but stand in a block that is not marked as `sh`, so nothing runs them."""
    for language, _, block in BLOCK.findall(text):
        if language in ("", "text", "bash", "console", "shell"):
            yield from (line for line in block.splitlines() if line.removeprefix("$ ").startswith(PROGRAMS))


def check_command(line: str) -> None:
    """Raise if the command names an option, a module, a file, a target or an extra that does not exist."""
    program, *words = shlex.split(SHELL_OPERATOR.split(line)[0])
    match program:
        case "leadline":
            # What follows -- are the arguments of the user's program.
            parse(leadline, program, words[: words.index("--")] if "--" in words else words)
        case "ssh":
            check_command(shlex.join(words[words.index("leadline") :]))
        case "make":
            assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
        case "python" if words[0] == "-m":
            assert find_spec(words[1]), line
        case "python" | "torchrun":
            assert all((ROOT / word).is_file() for word in words if word.endswith(".py") and "/" in word), (
                line
            )
        case "pip":
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            extras = re.findall(r"\[([\w,]+)\]", line)
            assert set(",".join(extras).split(",")) - {""} <= set(project["optional-dependencies"]), line
        case _:
            assert (ROOT / program).is_file(), line


def parse(command: click.Command, name: str, words: list[str]) -> None:
    """Parse the words down to the innermost command. Arguments may be missing, and files need not exist."""
    context = click.Context(command, info_name=name, **command.context_settings)
    if isinstance(command, click.Group) and words and not words[0].startswith("-"):
        inner, subcommand, rest = command.resolve_command(context, list(words))
        assert subcommand is not None
        parse(subcommand, inner or "", rest)
        return
    values, extra, _ = command.make_parser(context).parse_args(list(words))
    assert extra == [], f"{name} takes no {extra}"
    for parameter in command.params:
        value = values.get(parameter.name)
        if isinstance(parameter.type, click.Choice) and isinstance(value, str):
            for each in value.split("|"):  # "--to csv|jsonl" names both
                parameter.type.convert(each, parameter, context)
