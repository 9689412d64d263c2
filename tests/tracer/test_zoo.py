"""The zoo is fit to judge a tracer: every specimen trains in plain PyTorch, and the same way each time."""

from __future__ import annotations

import pytest
import torch

from tests.support.zoo import ZOO, Specimen, animals
from tests.support.zoo.plain_run import plain_run
from tests.support.zoo.specimen import specimen


@pytest.mark.parametrize("animal", animals())
def test_two_builds_of_a_specimen_give_the_same_loss_and_gradients(animal: Specimen):
    one, other = plain_run(animal()), plain_run(animal())
    torch.testing.assert_close(one.loss, other.loss, rtol=0, atol=0, equal_nan=True)
    for name, gradient in one.gradients.items():
        torch.testing.assert_close(gradient, other.gradients[name], rtol=0, atol=0, equal_nan=True, msg=name)


@pytest.mark.parametrize("animal", animals(without=["deep", "poisoned"]))
def test_a_specimen_has_a_finite_scalar_loss_and_some_gradient(animal: Specimen):
    run = plain_run(animal())
    assert run.loss.shape == ()
    assert run.loss.isfinite()
    assert any(gradient.to_dense().any() for gradient in run.gradients.values() if gradient is not None)


def test_a_specimen_with_an_unknown_trait_is_refused():
    with pytest.raises(ValueError, match="sparkly"):
        specimen("sparkly")


def test_the_zoo_holds_models_of_every_kind():
    assert len(ZOO) > 50
