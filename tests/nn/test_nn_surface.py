"""The public page of leadline.nn, and that it stands alone."""

import ast
import subprocess
import sys
from pathlib import Path

import leadline.nn

PACKAGE = Path(leadline.nn.__file__).parent
PROMISED = {
    "SCHEMES",
    "Residual",
    "Encoder",
    "LanguageModel",
    "EncoderDecoder",
    "MLP",
    "ResNet",
    "param_groups",
    "init",
}
ALONE = """
import sys
import leadline.nn
modules = {name for name in sys.modules if name.startswith("leadline")}
below = {"leadline", "leadline.errors", "leadline.text", "leadline.ops", "leadline.ops.gaussian"}
assert all(name.startswith("leadline.nn") for name in modules - below), modules
assert not {"rich", "click", "msgspec", "safetensors", "transformers"} & set(sys.modules)
"""


def test_every_promised_name_is_public():
    assert set(leadline.nn.__all__) >= PROMISED
    assert all(hasattr(leadline.nn, name) for name in leadline.nn.__all__)


def test_importing_nn_imports_torch_and_of_leadline_only_the_gaussian_table():
    subprocess.run([sys.executable, "-W", "error::ImportWarning", "-c", ALONE], check=True)


def test_files_and_functions_stay_small():
    for path in PACKAGE.glob("*.py"):
        source = path.read_text()
        assert source.count("\n") < 400, path.name
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                body = node.end_lineno - node.body[0].lineno + 1
                assert body < 60, f"{path.name}:{node.name}"
