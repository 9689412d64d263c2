"""Rules for the shape of the code: import directions, length limits, unique names, and imports without torch."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.constant_origins import constants_without_origin

SOURCE = ROOT / "src" / "leadline"

# Each layer may import what stands before it, never what stands after it.
LAYERS = [
    *("text", "errors", "collect", "records", "report", "ops", "nn", "joint_optimizer", "case"),
    *("tracer", "readings", "checks", "fixes", "monitor", "runner", "integrations"),
    *("targets", "config", "api", "testing", "cli", "lab"),
]
ENTRY_POINTS = ("__init__", "__main__")  # the public page and `python -m leadline`: they may name anything
DISPLAY = "leadline.records.display"  # the one door from a record to how it is shown
# The building blocks are usable without the rest; the quadrature they share needs only the standard library.
ALONE = {"nn": {"errors", "nn", "ops.gaussian"}}

TORCH_FREE = (
    "leadline",
    "leadline.text",
    "leadline.errors",
    "leadline.collect",
    "leadline.records",
    "leadline.report",
    "leadline.ops",
    "leadline.checks.model",
    "leadline.checks.run",
    "leadline.checks._select",
    *(f"leadline.fixes.{path.stem}" for path in sorted((SOURCE / "fixes").glob("[a-z]*.py"))),
    "leadline.tracer.sources",
    "leadline.monitor.past_run",
    "leadline.monitor.runfile",
    "leadline.monitor.live",
    "leadline.targets",
    "leadline.config",
    "leadline.testing",
    "leadline.lab.commands",
    "leadline.lab.sweeps",
    "leadline.cli",
    "leadline.readings.structure",
    "leadline.readings.signal",
    "leadline.readings.symmetry.reading",
)

MOST_LINES = 500
MOST_BODY_LINES = 60
# Each framework integration exports its callback under the same public name.
SHARED_CLASS_NAMES = {"LeadlineCallback"}
# Test modules that every test package may import from.
SHARED_TEST_PACKAGE = "support"
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "processor"}

Problems = Iterator[str]


def imported_modules(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and module of each import of Leadline's own code, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield node.lineno, "by a relative path"
                continue
            names = (
                [f"leadline.{alias.name}" for alias in node.names]
                if node.module == "leadline"
                else [node.module]
            )
        elif isinstance(node, ast.Call) and called_name(node).endswith(("import_module", "__import__")):
            names = [
                arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
            ]
        else:
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == "leadline" and rest != "__version__":
                yield node.lineno, rest


def called_name(call: ast.Call) -> str:
    """The last part of the name that is called; "" for what has none. Unparsing every call would take seconds."""
    function = call.func
    return getattr(function, "attr", getattr(function, "id", ""))


def imports_to_the_right(tree: ast.Module, module: str) -> Problems:
    layer = module.split(".")[1]
    if layer in ENTRY_POINTS:
        return
    if layer not in LAYERS:
        yield f"1: {module} is in no layer: give {layer!r} its place in LAYERS"
        return
    allowed = ALONE.get(layer, {*LAYERS[: LAYERS.index(layer) + 1]})
    if module == DISPLAY:
        allowed = {*allowed, "report"}
    for line, target in imported_modules(tree):
        if target.partition(".")[0] not in allowed and target not in allowed:
            yield f"{line}: {layer} must not import {target or 'leadline itself'}"


def prints(tree: ast.Module, module: str) -> Problems:
    if module.startswith(("leadline.cli", "leadline.lab.commands")):
        return
    for node in ast.walk(tree):
        is_call = isinstance(node, ast.Call) and called_name(node) in ("print", "pprint", "echo")
        if is_call and ast.unparse(node.func) in ("print", "pprint", "rich.print", "click.echo"):
            yield f"{node.lineno}: only the command line prints; return the text instead"
        is_stream = isinstance(node, ast.Attribute) and node.attr in ("stdout", "stderr")
        if is_stream and ast.unparse(node) in ("sys.stdout", "sys.stderr"):
            yield f"{node.lineno}: only the command line writes to {ast.unparse(node)}"


def long_functions(tree: ast.Module, module: str) -> Problems:
    """Count bodies without their docstring, because the docstring of a check is a page of documentation."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            length = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            if length >= MOST_BODY_LINES:
                yield f"{node.lineno}: the body of {node.name} has {length} lines (limit {MOST_BODY_LINES})"


def vague_name(tree: ast.Module, module: str) -> Problems:
    for part in module.split("."):
        if part.strip("_") in VAGUE_NAMES:
            yield f"1: {part!r} says nothing about what is inside"


def without_purpose(tree: ast.Module, module: str) -> Problems:
    if tree.body and not ast.get_docstring(tree):
        yield "1: a file opens with one sentence that says what it is"


def origins_without_reason(text: str) -> Problems:
    """Constants whose comment gives "(ours)" as the origin, which says nothing about why this value."""
    for line, code in enumerate(text.splitlines(), start=1):
        if "(ours)" in code:
            yield f"{line}: '(ours)' is not an origin: write Derived, Cited, Calibrated or Heuristic, and why"


def repeated_classes(trees: dict[str, ast.Module]) -> Problems:
    """Class names that several modules define at their top level; `trees` is by module name."""
    modules: dict[str, list[str]] = {}
    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name not in SHARED_CLASS_NAMES:
                modules.setdefault(node.name, []).append(module)
    for name, owners in modules.items():
        if len(owners) > 1:
            yield f"{name} is a class of {' and of '.join(owners)}: rename the less central one"


def foreign_test_imports(tree: ast.Module, module: str) -> Problems:
    """Imports of another test package than tests.support, and of private names of any test module."""
    own = module.split(".")[1]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for parts in (name.split(".") for name in names):
            if parts[0] != "tests" or len(parts) == 1:
                continue
            if parts[1] not in (own, SHARED_TEST_PACKAGE):
                yield f"{node.lineno}: move what is shared from {'.'.join(parts)} to tests.support"
            if any(part.startswith("_") and not part.startswith("__") for part in parts):
                yield f"{node.lineno}: {'.'.join(parts)} is private to its module"


def long_file(path: Path) -> Problems:
    lines = len(path.read_text().splitlines())
    if lines >= MOST_LINES:
        yield f"{lines} lines (limit {MOST_LINES})"


FIRST_IMPORTER_OF_TORCH = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    folder = module.__path__ if "." in name and hasattr(module, "__path__") else []
    for each in (name, *(info.name for info in pkgutil.walk_packages(folder, name + "."))):
        importlib.import_module(each)
        if "torch" in sys.modules:
            sys.exit("torch comes with " + each)
"""


def torch_importer(modules: tuple[str, ...], path: Path) -> str:
    """The first of these modules and their submodules that imports torch; "" if none does."""
    run = subprocess.run(
        [sys.executable, "-c", FIRST_IMPORTER_OF_TORCH, *modules],
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    return run.stderr.strip()


FIRST_CHECK = """
import sys, torch, leadline
leadline.check(torch.nn.Linear(2, 1), torch.ones(3, 2), loss=torch.Tensor.sum)
print(*(name for name in sys.argv[1:] if name in sys.modules))
"""
# What renders, repairs and watches; a check needs none of it, and each takes a tenth of a second or more to import.
NOT_NEEDED_BY_CHECK = ("rich", "leadline.fixes", "leadline.monitor", "leadline.nn.transformer")


def loaded_by_a_check(modules: tuple[str, ...]) -> list[str]:
    """The modules among these that the first check of a new process has imported."""
    run = subprocess.run(
        [sys.executable, "-c", FIRST_CHECK, *modules],
        env={**os.environ, "PYTHONPATH": str(SOURCE.parent)},
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    return run.stdout.split()


CHECKS: tuple[Callable[[ast.Module, str], Problems], ...] = (
    imports_to_the_right,
    prints,
    long_functions,
    vague_name,
    without_purpose,
)


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


def problems_of(path: Path, check: Callable[[ast.Module, str], Problems]) -> list[str]:
    return [f"{path.relative_to(ROOT)}:{problem}" for problem in check(parsed(path), module_name(path))]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_every_source_file_follows_the_rule(check):
    assert [problem for path in python_files("src") for problem in problems_of(path, check)] == []


def test_no_file_is_long():
    files = python_files("src", "tests", "benchmarks", "examples", "docs")
    assert [f"{path.relative_to(ROOT)}: {problem}" for path in files for problem in long_file(path)] == []


def test_class_names_are_unique_in_the_package():
    assert list(repeated_classes({module_name(path): parsed(path) for path in python_files("src")})) == []


def test_every_constant_has_an_origin_that_says_why():
    files = [path for path in (ROOT / "src").rglob("*") if path.suffix in (".py", ".js", ".css")]
    problems = [
        f"{path.relative_to(ROOT)}:{problem}"
        for path in files
        for problem in origins_without_reason(path.read_text())
    ]
    assert problems == []


def test_every_numeric_constant_says_where_it_comes_from():
    problems = [
        f"{path.relative_to(ROOT)}:{problem}"
        for path in python_files("src")
        for problem in constants_without_origin(path.read_text())
    ]
    assert problems == []


def test_test_packages_share_helpers_only_through_support():
    problems = [
        f"{path.relative_to(ROOT)}:{problem}"
        for path in python_files("tests")
        for problem in foreign_test_imports(
            parsed(path), ".".join(path.relative_to(ROOT).with_suffix("").parts)
        )
    ]
    assert problems == []


LAYER_LIST = re.compile(r"<!-- begin layers -->\n```\n(.*?)```\n<!-- end layers -->", re.DOTALL)


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/explanation/architecture.md"])
def test_a_page_that_lists_the_layers_lists_them_as_they_are_enforced(page):
    text = LAYER_LIST.search((ROOT / page).read_text())
    assert text is not None
    assert [name.strip() for name in text[1].split("|")] == LAYERS


def test_the_architecture_page_describes_every_package():
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert {name for name in packages if f"| `{name}` |" not in page} == set()


def test_importing_a_torch_free_layer_does_not_import_torch():
    assert torch_importer(TORCH_FREE, SOURCE.parent) == ""


def test_a_check_imports_no_package_that_it_does_not_use():
    assert loaded_by_a_check(("leadline.checks", *NOT_NEEDED_BY_CHECK)) == ["leadline.checks"]


BAD_SOURCES = [
    (imports_to_the_right, "leadline.records", "from leadline.tracer.trace import trace"),
    (imports_to_the_right, "leadline.records", "import leadline.tracer.trace.tracer"),
    (imports_to_the_right, "leadline.records", "from leadline import tracer"),
    (imports_to_the_right, "leadline.records", "from leadline import check"),
    (imports_to_the_right, "leadline.records", "import leadline"),
    (imports_to_the_right, "leadline.checks.f101", "from .._diagnosis import check"),
    (imports_to_the_right, "leadline.checks.f101", "from .. import diagnosis"),
    (imports_to_the_right, "leadline.ops.table", "def late():\n    from leadline.case import Case"),
    (imports_to_the_right, "leadline.ops.table", "if TYPE_CHECKING:\n    from leadline.case import Case"),
    (imports_to_the_right, "leadline.ops.table", "importlib.import_module('leadline.case')"),
    (imports_to_the_right, "leadline.nn.init", "from leadline.ops.table import measure"),
    (imports_to_the_right, "leadline.elsewhere", ""),
    (prints, "leadline.checks.f101", "def look(profile):\n    print(profile)"),
    (prints, "leadline.report.render.text", "import sys\nsys.stdout.write('here')"),
    (long_functions, "leadline.ops.table", "def long():\n" + "    x = 1\n" * MOST_BODY_LINES),
    (
        long_functions,
        "leadline.ops.table",
        "class A:\n  async def long():\n" + "    x = 1\n" * MOST_BODY_LINES,
    ),
    (vague_name, "leadline.ops.utils", ""),
    (vague_name, "leadline._helpers", ""),
    (without_purpose, "leadline.ops.table", "x = 1"),
    (foreign_test_imports, "tests.faults.test_names", "from tests.cli.conftest import run"),
    (foreign_test_imports, "tests.faults.test_names", "from tests import cli"),
    (foreign_test_imports, "tests.faults.test_names", "def late():\n    import tests.cli.conftest"),
    (foreign_test_imports, "tests.faults.test_names", "from tests.support.reports import _private"),
]


@pytest.mark.parametrize(("check", "module", "source"), BAD_SOURCES)
def test_a_bad_source_is_caught(check, module, source):
    assert list(check(ast.parse(source), module))


GOOD_SOURCES = [
    (imports_to_the_right, "leadline.tracer.trace.tracer", "from leadline.records import Trace"),
    (imports_to_the_right, "leadline.tracer.trace.tracer", "from leadline.tracer.trace.replay import replay"),
    (imports_to_the_right, "leadline.cli", "from leadline import __version__"),
    (imports_to_the_right, "leadline.__main__", "from leadline.cli import main"),
    (imports_to_the_right, "leadline.nn.init", "import torch\nfrom leadline.errors import InputError"),
    (imports_to_the_right, "leadline.nn.init", "from leadline.ops.gaussian import FINE_RULE"),
    (prints, "leadline.cli", "print('here')"),
    (long_functions, "leadline.ops.table", 'def page():\n    """' + "\n" * 99 + '    """\n    return 1'),
    (without_purpose, "leadline.empty", ""),
    (foreign_test_imports, "tests.faults.test_names", "from tests.support.reports import sick"),
    (foreign_test_imports, "tests.faults.test_names", "from tests.faults.test_strange_files import strange"),
    (foreign_test_imports, "tests.faults.test_names", "from tests.support import ROOT\nimport torch"),
]


@pytest.mark.parametrize(("check", "module", "source"), GOOD_SOURCES)
def test_a_good_source_passes(check, module, source):
    assert list(check(ast.parse(source), module)) == []


def test_a_class_name_that_two_modules_define_is_caught():
    trees = {"leadline.a": ast.parse("class _Plan: pass"), "leadline.b": ast.parse("class _Plan: pass")}
    assert len(list(repeated_classes(trees))) == 1
    trees["leadline.b"] = ast.parse("class Layout: pass")
    assert list(repeated_classes(trees)) == []


def test_an_origin_without_a_reason_is_caught():
    assert list(origins_without_reason("# Heuristic: three points show a trend.\nMIN_LAYERS = 3")) == []
    assert len(list(origins_without_reason("MIN_LAYERS = 3  # layers (ours)"))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "MIN_LAYERS = 3",
        "# Fewer layers are no stack.\nMIN_LAYERS = 3",
        "# Heuristic: three layers are a stack.\n\nMIN_LAYERS = 3",
        "# Heuristic: three layers are a stack.\nMIN_LAYERS = 3\n# In pixels.\nWIDTH = 80",
        "MIN_RATE, MAX_RATE = -1e-3, 2 * 1e-2",
        'RATES: dict[str, float] = {"adam": 1e-3}',
        "# Calibrated by benchmarks/no_such_script.py: half of the networks fail.\nMAX_RATE = 4.0",
    ],
)
def test_a_constant_without_an_origin_is_caught(source):
    assert len(list(constants_without_origin(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "# Heuristic: three layers are a stack.\nMIN_LAYERS = 3\nMAX_LAYERS = 9",
        "# Calibrated by benchmarks/verdicts: half of the networks fail.\nMAX_RATE = 4.0",
        "MAX_LAYERS = 2 * MIN_LAYERS",
        "NAME = 'adam'\nIS_FAST = True\nEMPTY = ()\nlower = 3",
    ],
)
def test_a_constant_with_an_origin_or_made_of_others_passes(source):
    assert list(constants_without_origin(source)) == []


def test_a_long_file_is_caught(tmp_path):
    path = tmp_path / "long.py"
    path.write_text("\n" * MOST_LINES)
    assert list(long_file(path))


def test_a_module_that_imports_torch_is_caught(tmp_path):
    package = tmp_path / "wet"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "dry.py").write_text("import json")
    (package / "soaked.py").write_text("import torch")
    # An empty module stands in for torch, because the check is by name and this import is quick.
    (tmp_path / "torch.py").write_text("")
    assert torch_importer(("wet", "wet.dry"), tmp_path) == ""
    assert torch_importer(("wet", "wet.dry", "wet.soaked"), tmp_path) == "torch comes with wet.soaked"
