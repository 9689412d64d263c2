"""Nothing that Leadline reads is run: no pickle, no eval, no shell, in any file of the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support import ROOT

SOURCE = ROOT / "src" / "leadline"

PICKLING = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "copyreg"}
"""Modules whose files can run code when they are read."""
FORBIDDEN = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load", "torch.save",
    "joblib.load", "joblib.dump", "tempfile.mktemp", "numpy.load", "np.load", "torch.hub.load", "torch.jit.load",
    "ElementTree.parse", "ElementTree.fromstring",
}  # fmt: skip
"""Calls that run code from a file or write such files; XML parsers follow entities."""
SAFETY_ARGUMENTS = {"weights_only", "shell", "allow_pickle", "trust_remote_code"}
"""Arguments that decide whether a call runs what it reads."""
BY_NAME = {"targets.py", "collect.py", "__init__.py", "_select.py", "cli/report.py"}
"""Files that may import a module by a computed name: a target of the user, or Leadline's own folders."""
RUNS_PROGRAMS = {"runner/program.py"}
"""Files that may run the user's own program, because the user asked for it: `leadline run`."""
IN_PAGES = re.compile(
    r"\.(?:inner|outer)HTML\s*=[^=]|insertAdjacentHTML|document\.write|\beval\(|new Function|\|\s*safe\b"
)
"""How text becomes markup or code in a page."""


def dangers(tree: ast.Module, name: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = (
                [each.name for each in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            )
            yield from (f"{name}:{node.lineno} {each}" for each in modules if each.split(".")[0] in PICKLING)
        if isinstance(node, ast.Call):
            yield from (f"{name}:{node.lineno} {said}" for said in _of_call(node, name))


def _of_call(node: ast.Call, name: str) -> Iterator[str]:
    called = ast.unparse(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else ""
    said = {each.arg: ast.unparse(each.value) for each in node.keywords if each.arg in SAFETY_ARGUMENTS}
    if called in FORBIDDEN and name not in RUNS_PROGRAMS:
        yield called
    if called == "torch.load" and said.get("weights_only") != "True":
        yield "torch.load without weights_only=True"
    if said.get("shell", "False") != "False":
        yield f"{called} through a shell"
    if said.get("allow_pickle", "False") != "False" or said.get("trust_remote_code", "False") != "False":
        yield f"{called} runs what it reads"
    by_name = called.endswith("import_module") and not isinstance(node.args[0], ast.Constant)
    if by_name and not name.endswith(tuple(BY_NAME)):
        yield "import of a module that is not named here"


def test_the_source_never_runs_what_it_reads():
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 300
    found = [
        each for path in files for each in dangers(ast.parse(path.read_text()), str(path.relative_to(SOURCE)))
    ]
    assert found == []


def test_no_page_makes_markup_of_text():
    pages = [
        path for path in SOURCE.rglob("*") if path.suffix in (".js", ".html") and "uplot" not in path.parts
    ]
    assert len(pages) > 5
    found = [f"{path.name}: {each[0]}" for path in pages for each in IN_PAGES.finditer(path.read_text())]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load(path)",
        "torch.load(path, weights_only=False)",
        "eval(text)",
        "subprocess.run(text, shell=True)",
        "numpy.load(path)",
        "frame.read(path, allow_pickle=True)",
        "import_module(text)",
        "AutoModel.from_config(config, trust_remote_code=True)",
    ],
)
def test_a_source_that_runs_what_it_reads_is_caught(source):
    assert list(dangers(ast.parse(source), "records/x.py"))


@pytest.mark.parametrize(
    "source",
    [
        "torch.load(path, weights_only=True)",
        "model.eval()",
        "re.compile(text)",
        "import_module('wandb')",
        "subprocess.run([a])",
    ],
)
def test_a_source_that_does_not_passes(source):
    assert list(dangers(ast.parse(source), "records/x.py")) == []


@pytest.mark.parametrize("text", ["host.innerHTML = name", "{{ name | safe }}", "eval(x)"])
def test_a_page_that_makes_markup_of_text_is_caught(text):
    assert IN_PAGES.search(text)
