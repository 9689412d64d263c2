"""The release archives are complete, and what checks them notices what is missing."""

import zipfile

import pytest
from packaging.metadata import Metadata

from tests.support import distribution

DECLARED = {"optional-dependencies": {"live": []}, "license": "Apache-2.0"}


def package_metadata(text="[docs](https://example.org)", **changes):
    fields = {
        "metadata_version": "2.4",
        "name": "leadline",
        "version": "1.0",
        "description": text,
        "description_content_type": "text/markdown",
        "license_expression": "Apache-2.0",
        "provides_extra": ["live"],
        **changes,
    }
    return Metadata.from_raw(fields, validate=False)


def test_complete_metadata_has_no_problems():
    assert distribution.metadata_problems(package_metadata(), DECLARED) == []


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (package_metadata("[docs](docs/index.md)"), "only a clone can follow"),
        (package_metadata(provides_extra=[]), "'live'"),
        (package_metadata(description_content_type="text/plain"), "no Markdown"),
        (package_metadata(license_expression="MIT"), "license"),
    ],
)
def test_metadata_that_a_reader_would_miss_is_noticed(metadata, words):
    (problem,) = distribution.metadata_problems(metadata, DECLARED)
    assert words in problem


def test_a_file_that_the_wheel_lacks_is_noticed(tmp_path):
    wheel = tmp_path / "leadline.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("leadline/__init__.py", "")
        archive.writestr("tests/foreign.py", "")
    missing = distribution.missing_files(wheel)
    assert "missing or foreign in the wheel: leadline/report/render/templates/page.html" in missing
    assert "missing or foreign in the wheel: tests/foreign.py" in missing
