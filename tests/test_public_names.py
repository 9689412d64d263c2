"""The public names of the packages that load them on first use."""

from __future__ import annotations

import pytest

import leadline
from leadline.monitor import runfile


def test_dir_lists_the_public_names():
    assert {"check", "nn", "testing"} <= set(dir(leadline))
    assert leadline.testing.assert_trainable is not None


def test_every_public_name_of_the_building_blocks_exists():
    assert dir(leadline.nn) == sorted(leadline.nn.__all__)
    assert all(getattr(leadline.nn, name) is not None for name in leadline.nn.__all__)


@pytest.mark.parametrize("package", [leadline, leadline.nn, runfile], ids=lambda package: package.__name__)
def test_an_unknown_name_raises_an_attribute_error(package):
    with pytest.raises(AttributeError, match="no attribute 'Runner'"):
        _ = package.Runner
