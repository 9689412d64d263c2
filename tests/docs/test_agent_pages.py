"""The pages for coding agents: what they name exists, and the commands of the skill run in their order."""

import re
import shlex
import subprocess
import sys

import pytest

from tests.support import ROOT
from tests.support.page_commands import BLOCK, INLINE_CODE, check_command, commands

DOCS = ROOT / "docs"
SKILL = (DOCS / "SKILL.md").read_text()
SITE = "https://leadline-dev.github.io/leadline/"
BROKEN = """\
import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(256, 8)
labels = inputs[:, :3].argmax(1)
model = nn.Linear(8, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for start in range(0, 256, 16):
    outputs = model(inputs[start : start + 16])
    loss = nn.functional.cross_entropy(outputs.softmax(1), labels[start : start + 16])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def skill_commands():
    """The commands of the skill, whose blocks are indented because they belong to steps."""
    return [line for *_, block in BLOCK.findall(re.sub(r"(?m)^    ", "", SKILL)) for line in commands(block)]


def test_every_link_of_llms_txt_is_a_page_of_the_site():
    links = re.findall(r"\]\((.+?)\)", (DOCS / "llms.txt").read_text())
    assert links
    assert [link for link in links if not link.startswith(SITE)] == []
    pages = [DOCS / link.removeprefix(SITE).replace(".html", ".md") for link in links]
    assert [page.name for page in pages if not page.is_file()] == []


def test_every_command_that_llms_txt_names_exists():
    named = [
        code for code in INLINE_CODE.findall((DOCS / "llms.txt").read_text()) if code.startswith("leadline ")
    ]
    assert len(named) > 3
    for line in named:
        check_command(line)


def test_the_skill_says_what_it_is_for_in_its_front_matter():
    front = re.match(r"---\nname: leadline\ndescription: (.+)\n---\n", SKILL)
    assert front is not None
    assert len(front[1]) < 400


def test_the_commands_of_the_skill_exist():
    assert len(skill_commands()) == 5
    for line in skill_commands():
        check_command(line)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_commands_of_the_skill_run_in_their_order(tmp_path):
    (tmp_path / "train.py").write_text(BROKEN)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    codes = []
    for line in skill_commands():
        words = shlex.split(line)[1:]
        done = subprocess.run(
            [sys.executable, "-m", "leadline", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        codes.append(done.returncode)
        if "--diff" in words:
            subprocess.run(["git", "apply"], cwd=tmp_path, input=done.stdout, text=True, check=True)
    assert codes == [1, 0, 0, 0, 0]
    assert (tmp_path / "train.py").read_text() != BROKEN
