"""`leadline mcp`: what an agent can reach, what it cannot, and the tools over stdio with the client of the SDK."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from leadline.cli import main
from leadline.cli.mcp import AgentTools, Workspace, run_command
from leadline.errors import InputError
from tests.support import ROOT

PROGRAM = """\
import torch
from torch import nn

print("the program speaks")
model = nn.Linear(8, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(2):
    loss = nn.functional.cross_entropy(model(torch.randn(16, 8)).softmax(1), torch.arange(16) % 3)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture
def project(tmp_path):
    """A folder with programs, and things that lead out of it."""
    root = tmp_path / "project"
    (root / "scripts").mkdir(parents=True)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    for name in ("train.py", "other.py", "scripts/one.py"):
        (root / name).write_text(PROGRAM)
    (root / "config.json").write_text("{}")
    (root / "notes.txt").write_text("")
    (tmp_path / "secret.py").write_text(PROGRAM)
    (root / "link.py").symlink_to(tmp_path / "secret.py")
    (root / "out").symlink_to(tmp_path)
    (root / "alias.py").symlink_to(root / "other.py")
    return root


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("train.py", "./train.py"),
        ("./train.py", "./train.py"),
        ("train.py:make_case", "./train.py:make_case"),
        ("scripts/one.py", "./scripts/one.py"),
        ("config.json", "./config.json"),
    ],
)
def test_what_the_user_named_and_what_is_only_read_is_reached(project, target, expected):
    workspace = Workspace(root=project, programs=("train.py", "scripts/*.py"))
    assert workspace.target(target) == expected


def test_an_absolute_path_inside_the_root_is_the_same_file(project):
    workspace = Workspace(root=project, programs=(str(project / "train.py"),))
    assert workspace.target(str(project / "train.py")) == "./train.py"


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("../secret.py", r"without '\.\.'"),
        ("scripts/../other.py", r"without '\.\.'"),
        ("/etc/passwd", "a path inside"),
        ("link.py", "a path inside"),
        ("out/secret.py", "a path inside"),
        ("absent.py", "a path that exists"),
        ("other.py", "a program that the user named"),
        ("alias.py", "a program that the user named"),
        ("notes.txt", "a Python file, a run file"),
        ("scripts", "a Python file, a run file"),
        ("train.py:a b", "file.py:function"),
        ("train.py:--output=x", "file.py:function"),
        ("os:system", "a path that exists"),
        ("--help", "a path that exists"),
    ],
)
def test_what_leads_out_or_was_not_named_is_refused(project, target, reason):
    workspace = Workspace(root=project, programs=("train.py", "scripts/*.py", "link.py", "out/*.py"))
    with pytest.raises(InputError, match=reason):
        workspace.target(target)


@pytest.mark.parametrize("pattern", ["../*.py", "/etc/*.py"])
def test_a_pattern_that_leads_out_of_the_root_is_refused_when_the_server_starts(project, pattern):
    with pytest.raises(InputError, match="programs inside the root"):
        Workspace(root=project, programs=(pattern,)).allowed()


def test_run_files_behind_a_link_are_not_listed(project):
    (project.parent / "far.leadline").write_bytes(b"")
    (project / "near.leadline").symlink_to(project.parent / "far.leadline")
    workspace = Workspace(root=project)
    assert workspace.runs(".") == []
    with pytest.raises(InputError, match="a path inside"):
        workspace.runs("out")


@pytest.mark.parametrize("code", ["--help", "D902 --x", "", "../x"])
def test_explain_takes_only_codes_and_names(project, code):
    with pytest.raises(InputError, match="a code or a name"):
        AgentTools(Workspace(root=project)).explain(code)


def test_a_file_that_is_named_like_a_library_is_not_imported_in_its_place(project):
    (project / "click.py").write_text("raise SystemExit('executed')")
    assert "visible-answer" in run_command(["explain", "D902"], project)


def test_without_the_extra_the_command_says_how_to_install_it(project, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert main(["mcp", "--root", str(project)]) == 2
    assert "pip install '.[mcp]'" in capsys.readouterr().err


async def _ask(root, *calls):
    """The names of all tools, and the answers to some calls, over stdio."""
    from mcp import Client, StdioServerParameters

    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    words = ["-m", "leadline", "mcp", "--root", str(root), "train.py"]
    parameters = StdioServerParameters(command=sys.executable, args=words, env=environment)
    async with Client(parameters) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        answers = [await client.call_tool(name, arguments) for name, arguments in calls]
    return tools, [(each.is_error, "\n".join(part.text for part in each.content)) for each in answers]


def test_the_client_of_the_sdk_lists_the_tools_and_gets_an_explanation_and_a_refusal(project):
    pytest.importorskip("mcp", reason="needs the extra mcp")
    calls = [("explain", {"code": "D902"}), ("check", {"target": "../secret.py"}), ("runs", {})]
    tools, answers = asyncio.run(_ask(project, *calls))
    assert tools == ["check", "run_check_only", "explain", "fix", "runs", "run_numbers"]
    explained, refused, runs = answers
    assert (explained[0], "visible-answer" in explained[1]) == (False, True)
    assert (refused[0], "without '..'" in refused[1]) == (True, True)
    assert runs == (False, "no run files there")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_agent_checks_a_program_and_gets_a_diff_over_stdio(project):
    pytest.importorskip("mcp", reason="needs the extra mcp")
    calls = [
        ("check", {"target": "train.py"}),
        ("run_check_only", {"program": "train.py"}),
        ("fix", {"target": "train.py", "seconds": 20}),
    ]
    _, answers = asyncio.run(_ask(project, *calls))
    assert [is_error for is_error, _ in answers] == [False, False, False]
    checked, ran, fixed = (text for _, text in answers)
    assert "cause: I309 squashed-logits" in checked
    assert "recheck: leadline check ./train.py --format agent" in checked
    assert "cause: I309 squashed-logits" in ran
    assert "the program speaks" not in checked
    assert "recheck: leadline check ./train.py --format agent" in fixed
    diff = fixed.partition("\ndiff:\n")[2]
    subprocess.run(["git", "apply", "--check"], cwd=project, input=diff, text=True, check=True)
    assert (project / "train.py").read_text() == PROGRAM
