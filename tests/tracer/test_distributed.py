"""Models wrapped for distributed training are traced like the plain model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn

from benchmarks.footprint import differences, footprint
from leadline import Case
from tests.support.traces import gaps_about, module, output_of, parameter, trace
from tests.support.zoo import ZOO, energy
from tests.support.zoo.plain import WIDTH, batch
from tests.support.zoo.plain_run import loss_of


@pytest.fixture
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_a_ddp_model_is_traced_like_the_plain_model_and_keeps_its_buckets():  # rows 24, 26
    case = ZOO["mlp"]()
    names = [each.name for each in trace(case).parameters]
    wrapped = nn.parallel.DistributedDataParallel(case.model)
    loss_of(case, wrapped(case.inputs)).backward()
    whole = Case(wrapped, case.inputs, case.targets, case.loss)
    before = footprint(whole)
    found = trace(whole)
    assert [each.name for each in found.parameters] == names
    assert module(found, "").calls == 1
    assert differences(before, footprint(whole)) == []
    wrapped.zero_grad()
    loss_of(case, wrapped(case.inputs)).backward()


@pytest.mark.filterwarnings("ignore:DTensor random operators:UserWarning")  # what torch 2.6 says
@pytest.mark.usefixtures("one_process")
def test_distributed_tensors_are_measured_or_reported_as_unobserved():  # rows 27, 28
    from torch.distributed.tensor import Replicate, distribute_module, init_device_mesh

    mesh = init_device_mesh("cpu", (1,))
    model = distribute_module(
        nn.Linear(WIDTH, WIDTH),
        mesh,
        input_fn=lambda module, inputs, mesh: torch.distributed.tensor.DTensor.from_local(
            inputs[0], mesh, [Replicate()]
        ),
        output_fn=lambda module, output, mesh: output.to_local(),
    )
    found = trace(Case(model, batch(), loss=energy))
    assert parameter(found, "weight").norm is not None or parameter(found, "weight").unobserved
    assert gaps_about(found, "DTensor") or output_of(found, "").forward is not None
