"""`leadline mcp`: serves check, fix, explain and run files to a coding agent over the Model Context Protocol.

Every tool starts a command of Leadline in a process of its own, so nothing that a program prints can disturb the
protocol. Paths stay inside one folder, and no code runs that the user did not name when the server was started.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from leadline import __version__
from leadline.cli.exit_codes import FINE
from leadline.cli.options import examples
from leadline.errors import InputError, LeadlineError, install_extra
from leadline.monitor.runfile import SUFFIX
from leadline.monitor.runfile.summary import find_runs
from leadline.runner.program import SOURCE_SUFFIXES
from leadline.text import cut

# Heuristic: an agent waits for minutes, not for hours; a search for a fix has its own, smaller budget.
MAX_TOOL_SECONDS = 900
MAX_FIX_SECONDS = 300
# Heuristic: run checks look at the last 32 steps; more than some windows of them only take time.
MAX_FOLLOWED_STEPS = 512
# Heuristic: a diff of a large file still fits, and no answer fills the context of an agent.
MAX_ANSWER_LENGTH = 24_000
DATA_SUFFIXES = (SUFFIX, ".json", ".csv")
"""Targets that are read and not executed: run files, configs and logs."""
RULE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*")

INSTRUCTIONS = """Leadline says whether a PyTorch training will work, why not, and what fixes it.
Call check on the training program first. If the answer has a line `fix`, call fix: it returns a diff that was proved by
a short training or by running the changed program. Apply the diff, then call check again until there is no `cause`. If
it has a line `next`, call check with the steps of that line: it follows the loop. Give the same steps to fix. Call
explain on a code that you do not know. No tool changes a file. The programs that may be run were named by the user."""


@click.command(
    epilog=examples("leadline mcp train.py", "leadline mcp --root project 'scripts/*.py' train.py")
)
@click.argument("programs", metavar="[PROGRAM]...", nargs=-1)
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="Folder that all paths stay inside [default: the working directory].",
)
def mcp(programs: tuple[str, ...], root: Path) -> int:
    """Serve check, fix, explain and run files to a coding agent, over the Model Context Protocol on stdin and stdout.

    PROGRAM is a Python file, or a pattern of such files, that the agent may have run: check and fix execute it, as you
    would. Nothing else is executed. Paths are relative to the root; those that lead out of it, also through symbolic
    links, are refused. No tool changes a file. It needs the extra `mcp`.
    """
    workspace = Workspace(root=root.resolve(), programs=programs)
    server = make_server(workspace)
    server.run("stdio")
    return FINE


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """The folder that a server was started for, and the programs that may be run in it."""

    root: Path
    """Without symbolic links."""
    programs: tuple[str, ...] = ()
    """Files or patterns, relative to the root."""

    def inside(self, path: str) -> Path:
        """The path, without symbolic links; raises InputError if it leads out of the root or does not exist."""
        if ".." in Path(path).parts or "\0" in path:
            raise _refused(path, "a path without '..'", "give the path from the root")
        place = (self.root / path).resolve()
        if not place.is_relative_to(self.root):
            raise _refused(path, f"a path inside {self.root}", "give the path from the root")
        if not place.exists():
            raise _refused(path, "a path that exists", "look for its right name")
        return place

    def target(self, target: str) -> str:
        """A target for the command line: data inside the root, or a program that the user named."""
        name, colon, factory = target.partition(":")
        place = self.inside(name)
        if colon and not factory.isidentifier():
            raise _refused(target, "file.py:function", "name a function of the file")
        if not (place.is_file() and place.suffix in (*DATA_SUFFIXES, *SOURCE_SUFFIXES)):
            raise _refused(target, "a Python file, a run file, a config or a log", "name such a file")
        if place.suffix in SOURCE_SUFFIXES and place not in self.allowed():
            raise _refused(
                target,
                f"a program that the user named: {', '.join(self.programs) or 'none'}",
                f"ask the user to start the server with it: leadline mcp {name}",
            )
        return f"./{place.relative_to(self.root).as_posix()}{colon}{factory}"

    def allowed(self) -> set[Path]:
        """The programs that may be run, without symbolic links; what leads out of the root is left out."""
        found = (
            path.resolve()
            for pattern in self.programs
            for path in self.root.glob(_relative(pattern, self.root))
        )
        return {path for path in found if path.is_relative_to(self.root)}

    def runs(self, folder: str) -> list[str]:
        """The run files in a folder, without those that a link leads out to."""
        place = self.inside(folder)
        found = (path.resolve() for path in find_runs(place))
        return [f"./{path.relative_to(self.root)}" for path in found if path.is_relative_to(self.root)]


def _relative(pattern: str, root: Path) -> str:
    """A pattern as the shell may have written it, from the root."""
    path = Path(pattern)
    if path.is_absolute() and path.is_relative_to(root):
        path = path.relative_to(root)
    if path.is_absolute() or ".." in path.parts:
        raise InputError(
            expected="programs inside the root", got=repr(pattern), fix="start the server with another --root"
        )
    return path.as_posix()


def _refused(path: str, expected: str, fix: str) -> InputError:
    return InputError(expected=expected, got=repr(path), fix=fix)


def run_command(words: Sequence[str], root: Path) -> str:
    """What a command of Leadline writes to stdout, or to stderr if that is nothing or belongs to the user's program."""
    # -P: a file of the user that is called like a library must not be imported in its place.
    command = [sys.executable, "-P", "-m", "leadline", *words]
    try:
        done = subprocess.run(
            command,
            cwd=root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=MAX_TOOL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"error: leadline {words[0]} took longer than {MAX_TOOL_SECONDS} s and was stopped"
    out = (
        done.stdout if words[0] != "run" and done.stdout.strip() else ""
    )  # whole lines: `git apply` needs the last
    return cut(out or done.stderr.strip() or f"exit code {done.returncode}", MAX_ANSWER_LENGTH)


def make_server(workspace: Workspace) -> Any:
    """The server with its tools; raises InputError if the extra is missing."""
    try:
        from mcp.server import MCPServer  # needs the extra `mcp`
        from mcp.server.mcpserver.exceptions import ToolError
    except ModuleNotFoundError as error:
        raise InputError(
            expected="the package mcp, which speaks the Model Context Protocol",
            got=f"no module {error.name!r}",
            fix=install_extra("mcp"),
        ) from None
    workspace.allowed()  # refuses wrong patterns at once
    tools = AgentTools(workspace)
    server = MCPServer("leadline", version=__version__, instructions=INSTRUCTIONS)
    for tool in (tools.check, tools.run_check_only, tools.explain, tools.fix, tools.runs, tools.run_numbers):
        server.add_tool(_telling(tool, ToolError), structured_output=False)
    return server


def _telling(tool: Callable[..., str], error_kind: type[Exception]) -> Callable[..., str]:
    """The tool, whose refusals reach the agent in words: of other errors the protocol passes on no more than a name."""

    @wraps(tool)
    def call(*args: Any, **kwargs: Any) -> str:
        try:
            return tool(*args, **kwargs)
        except LeadlineError as error:
            raise error_kind(str(error)) from None

    return call


def _followed(steps: int) -> tuple[str, ...]:
    return ("--steps", str(min(steps, MAX_FOLLOWED_STEPS))) if steps > 0 else ()


class AgentTools:
    """The tools. The first line of each docstring is what an agent reads; every answer is text."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def check(self, target: str, steps: int = 0) -> str:
        """Check a training program (train.py), a factory (train.py:make_case), a Hugging Face config.json, a run file
        or a log. Returns verdict, causes with file and line, what to change, and the command that fixes it. With steps,
        a program is followed for so many steps (64 are enough), and its loop is judged too."""
        return self._run("check", self._workspace.target(target), "--format", "agent", *_followed(steps))

    def run_check_only(self, program: str) -> str:
        """Run the first steps of a training program, as `leadline run --check-only`, and return the verdict."""
        return self._run("run", "--check-only", "--format", "agent", self._workspace.target(program))

    def fix(self, target: str, seconds: int = 60, steps: int = 0) -> str:
        """Search for a change after which the program trains, prove it by a short training or by running the changed
        program, and return it as a diff for `git apply`. With steps, mistakes of the loop are fixed too. Changes no
        file."""
        words = ("--budget", f"{min(max(seconds, 1), MAX_FIX_SECONDS)}s", *_followed(steps))
        return self._run("fix", self._workspace.target(target), "--format", "agent", *words)

    def explain(self, code: str) -> str:
        """Explain a check or a fix by its code or name (D902, learning-rate): what it measures, when it is wrong."""
        if not RULE_NAME.fullmatch(code):
            raise _refused(
                code, "a code or a name such as D902 or learning-rate", "take it from a cause line"
            )
        return self._run("explain", code)

    def runs(self, folder: str = ".") -> str:
        """List the run files below a folder as JSON: model, steps, last loss, alerts, state."""
        found = self._workspace.runs(folder)
        return self._run("runs", *found, "--format", "json") if found else "no run files there"

    def run_numbers(self, run: str, points: int = 20) -> str:
        """The numbers of a recorded run (loss, rate, norms) as JSON lines, at most `points` steps, evenly spaced."""
        target = self._workspace.target(run)
        if not target.endswith(SUFFIX):
            raise _refused(run, f"a run file, *{SUFFIX}", "list them with runs")
        rows = self._run("export", target, "--to", "jsonl").splitlines()
        step = max(1, -(-len(rows) // max(points, 1)))
        return "\n".join(rows[::step])

    def _run(self, *words: str) -> str:
        return run_command(words, self._workspace.root)
