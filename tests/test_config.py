"""The table [tool.leadline] is found from subfolders, every key is checked, and each error says what to write."""

import tomllib
from textwrap import dedent

import pytest

from leadline.config import EXAMPLES, Config, TargetConfig, find_config, read_config
from leadline.errors import InputError

FULL = """
[tool.leadline]
targets = ["train.py:make", "package.nets:make"]
select = ["F", "B201"]
ignore = ["gradient-explosion"]
fail-on = "error"
baseline = "known.json"
format = "github"
seed = 3
device = "cpu"
dtype = "float64"
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """`project(text)` writes pyproject.toml in an empty folder in which we stand."""
    monkeypatch.chdir(tmp_path)

    def project(text: str):
        (tmp_path / "pyproject.toml").write_text(dedent(text))
        return tmp_path / "pyproject.toml"

    return project


def test_every_key_is_read(project):
    assert read_config(project(FULL)) == Config(
        targets=("train.py:make", "package.nets:make"),
        select=("F", "B201"),
        ignore=("gradient-explosion",),
        fail_on="error",
        baseline="known.json",
        format="github",
        seed=3,
        device="cpu",
        dtype="float64",
    )


def test_a_target_can_have_its_own_table(project):
    text = """
    [tool.leadline]
    ignore = ["F"]

    [tool.leadline.targets."train.py:make"]

    [tool.leadline.targets."package.nets:make"]
    select = ["B"]
    fail-on = "error"
    """
    assert read_config(project(text)) == Config(
        targets=("train.py:make", "package.nets:make"),
        ignore=("F",),
        per_target={
            "train.py:make": TargetConfig(),
            "package.nets:make": TargetConfig(select=("B",), fail_on="error"),
        },
    )


def test_an_empty_table_changes_nothing(project):
    assert read_config(project("[tool.leadline]")) == Config()


def test_every_key_of_the_record_has_an_example_that_can_be_read(project):
    keys = {name.replace("_", "-") for name in Config.__struct_fields__} - {"per-target"}
    assert EXAMPLES.keys() == keys
    text = "\n".join(["[tool.leadline]", *EXAMPLES.values()])
    assert set(tomllib.loads(text)["tool"]["leadline"]) == keys
    read_config(project(text))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("fail_on = 'error'", "did you mean fail-on"),
        ("selct = ['F']", "did you mean select"),
        ("colour = 'red'", "'colour'"),
        ("fail-on = 'warnings'", "did you mean warning"),
        ("fail-on = 3", "fail-on to be one of"),
        ("fail-on = []", "fail-on to be one of"),
        ("format = 'sraif'", "did you mean sarif"),
        ("format = 'pdf'", "'pdf'"),
        ("select = 'F'", r'select = \["F", "B201"\]'),
        ("ignore = [1]", "ignore"),
        ("seed = '3'", "seed = 0"),
        ("seed = -1", "seed"),
        ("seed = true", "seed"),
        ("baseline = []", "baseline"),
        ("targets = 3", "targets"),
        ("targets = {'a.py:make' = 3}", "a table"),
        ("targets = {'a.py:make' = {selct = ['F']}}", "did you mean select"),
        ("targets = {'a.py:make' = {seed = 1}}", "select, ignore, fail-on"),
        ("targets = {'a.py:make' = {fail-on = 'eror'}}", "did you mean error"),
        ("targets = {'a.py:make' = {ignore = 'F'}}", r'ignore = \["gradient-decay"\]'),
    ],
)
def test_the_error_for_a_mistake_names_the_key_and_what_to_write(project, line, words):
    with pytest.raises(InputError, match=words) as caught:
        read_config(project(f"[tool.leadline]\n{line}\n"))
    assert "pyproject.toml" in str(caught.value)


@pytest.mark.parametrize("text", ["[tool.leadline", "seed = 1 2", "\0"])
def test_a_file_that_is_not_toml_is_an_error(project, text):
    path = project(text)
    with pytest.raises(InputError, match="TOML"):
        read_config(path)


@pytest.mark.parametrize("text", ["", "[tool.other]", "tool = 3", "[tool]\nleadline = 3"])
def test_a_file_without_the_table_is_skipped_but_is_an_error_if_it_was_named(project, text):
    path = project(text)
    assert find_config(path.parent) is None
    with pytest.raises(InputError, match=r"\[tool.leadline\]"):
        read_config(path)


def test_the_nearest_file_with_the_table_is_found_from_a_subfolder(project, tmp_path):
    path = project("[tool.leadline]")
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.other]")
    assert find_config(below) == path
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.leadline]")
    assert find_config(below) == tmp_path / "a" / "pyproject.toml"


def test_paths_become_relative_to_the_working_directory(project, tmp_path, monkeypatch):
    path = project(FULL)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    config = read_config(path)
    assert config.baseline == "../known.json"
    assert config.targets == ("../train.py:make", "package.nets:make")
