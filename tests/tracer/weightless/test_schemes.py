"""What is followed of the models of `leadline.nn` is what their schemes really draw."""

from __future__ import annotations

import pytest

from leadline.nn import SCHEMES, LanguageModel
from tests.support.init_agreement import SIGMAS, worst


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_initialization_of_a_scheme_is_followed(scheme):
    distance, whose = worst(lambda: LanguageModel(vocab=97, width=32, heads=2, depth=3, scheme=scheme))
    assert distance < SIGMAS, whose


def test_a_scheme_taken_for_another_is_caught():
    schemes = iter(("deepnorm", "post"))  # the first is followed, the second is drawn
    distance, _ = worst(lambda: LanguageModel(vocab=97, width=32, heads=2, depth=3, scheme=next(schemes)))
    assert distance > SIGMAS
