"""The public names of the packages that load them on first use."""

from __future__ import annotations

import pytest

import leadline
from leadline.monitor import runfile


def test_dir_lists_the_public_names():
    assert {"check", "nn", "testing"} <= set(dir(leadline))
    assert leadline.testing.assert_trainable is not None


@pytest.mark.parametrize("package", [leadline, runfile], ids=lambda package: package.__name__)
def test_an_unknown_name_raises_an_attribute_error(package):
    with pytest.raises(AttributeError, match="no attribute 'Runner'"):
        _ = package.Runner
