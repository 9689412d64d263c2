"""An attachment finds model, batch, loss and optimizers of the first step, whatever the loop looks like."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional

from leadline.runner import attachment
from leadline.runner.attachment import MAX_HAND_MADE_STEPS, Attachment, RunSettings
from leadline.runner.tape import MAX_EVALUATION_CALLS
from leadline.runner.watches import WatchSettings
from tests.support.attachments import Ear, replayed_loss, small_model, step


def test_one_call_of_a_model_becomes_a_plain_case(attach):
    model, x, y = small_model(), torch.randn(8, 6), torch.randint(4, (2, 4))
    attached = attach(replayed_loss)
    real = step(functional.cross_entropy(model(x), y.view(-1)), torch.optim.SGD(model.parameters(), lr=0.1))
    case, loss, gradients = attached.result
    assert case.model is model
    assert case.inputs is x
    assert case.targets is y  # as it was before the view
    assert loss == pytest.approx(real)
    assert all(torch.allclose(a, p.grad) for a, p in zip(gradients, model.parameters(), strict=True))


def test_the_loss_follows_another_output(attach):
    model, x, y = small_model(), torch.randn(8, 6), torch.randn(8, 4)
    attached = attach(lambda case: case)
    criterion = nn.MSELoss()
    step(3 * criterion(model(x).tanh(), y) + 0.1, torch.optim.SGD(model.parameters(), lr=0.1))
    case, output = attached.result, torch.randn(8, 4)
    assert case.loss(output, y).item() == pytest.approx((3 * criterion(output.tanh(), y) + 0.1).item())
    assert case.loss(output, 2 * y).item() == pytest.approx(
        (3 * criterion(output.tanh(), 2 * y) + 0.1).item()
    )


def test_a_model_that_computes_its_own_loss_needs_no_loss_function(attach):
    class OwnLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = small_model()

        def forward(self, inputs, labels=None):
            return {"loss": functional.cross_entropy(self.net(inputs), labels), "logits": None}

    model, x, y = OwnLoss(), torch.randn(8, 6), torch.randint(4, (8,))
    attached = attach(replayed_loss)
    real = step(model(inputs=x, labels=y)["loss"], torch.optim.SGD(model.parameters(), lr=0.1))
    case, loss, _ = attached.result
    assert case.loss is None
    assert set(case.inputs) == {"inputs", "labels"}
    assert loss == pytest.approx(real)


def test_micro_batches_become_one_with_the_loss_times_their_number(attach):
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attached = attach(replayed_loss)
    losses = []
    for _ in range(3):
        x, y = torch.randn(8, 6), torch.randn(8, 4)
        loss = functional.mse_loss(model(x), y) / 3
        loss.backward()
        losses.append(loss.item())
    optimizer.step()
    case, loss, _ = attached.result
    assert attached.audience.steps[0].taped.micro_batches == 3
    assert loss == pytest.approx(3 * losses[0])
    assert len(case.batches) == 2


def test_several_modules_become_one_model_with_the_names_of_the_program(attach):
    torch.manual_seed(0)
    encoder, decoder = nn.Linear(6, 3), nn.Linear(3, 6)
    x = torch.randn(8, 6)
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
    attached = attach(replayed_loss)
    real = step(functional.mse_loss(decoder(encoder(x).relu()), x), optimizer)
    case, loss, gradients = attached.result
    assert [name for name, _ in case.model.named_parameters()] == [
        *("encoder.weight", "encoder.bias", "decoder.weight", "decoder.bias")
    ]
    assert loss == pytest.approx(real)
    assert torch.allclose(gradients[0], encoder.weight.grad)


def test_a_parameter_used_outside_modules_belongs_to_the_model(attach):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.scale = small_model(), nn.Parameter(torch.tensor(2.0))

        def loss(self, x):
            return (self.scale * self.net(x)).square().mean()

    model = Scaled()
    attached = attach(replayed_loss)
    real = step(model.loss(torch.randn(8, 6)), torch.optim.SGD(model.parameters(), lr=0.1))
    case, loss, _ = attached.result
    assert "scale" in dict(case.model.named_parameters())
    assert loss == pytest.approx(real)


def test_a_gan_has_a_step_of_each_optimizer_and_images_without_gradient_are_data(attach):
    torch.manual_seed(0)
    generator, critic = nn.Linear(3, 6), nn.Linear(6, 1)
    first = torch.optim.SGD(critic.parameters(), lr=0.1)
    second = torch.optim.SGD(generator.parameters(), lr=0.1)
    attached = attach(rehearse=False, probes=False)
    for _ in range(2):
        images = generator(torch.randn(8, 3))
        step(critic(images.detach()).mean() - critic(torch.randn(8, 6)).mean(), first)
        step(-critic(images).mean(), second)
    one, two = (each.taped for each in attached.audience.steps)
    assert one.calls == (("critic", 2),)
    assert dict(two.calls) == {"generator": 1, "critic": 1}
    assert [each.profile.model for each in attached.reports] == ["Linear", "generator + critic"]


def test_each_kind_of_step_is_watched_from_the_one_that_was_checked_within_one_budget(attach):
    torch.manual_seed(0)
    generator, critic = nn.Linear(3, 6), nn.Linear(6, 1)
    first = torch.optim.SGD(critic.parameters(), lr=0.1)
    second = torch.optim.SGD(generator.parameters(), lr=0.1)
    attached = attach(is_watched=True, rehearse=False, probes=False)
    losses = [], []
    for _ in range(5):
        images = generator(torch.randn(8, 3))
        losses[0].append(step(critic(images.detach()).mean() - critic(torch.randn(8, 6)).mean(), first))
        losses[1].append(step(-critic(images).mean(), second))
    assert [each.trouble for each in attached.watches] == ["", ""]
    assert [each.budget for each in attached.watches] == [0.005, 0.005]
    for watch, expected in zip(attached.watches, losses, strict=True):
        assert list(watch.history.scalars("loss").values) == pytest.approx(expected[-5:])


def test_a_network_that_is_trained_later_is_checked_and_copies_of_the_first_are_not(attach):
    attached = attach(rehearse=False, probes=False)
    for model in (small_model(), small_model(), nn.Linear(6, 3)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            step(model(torch.randn(8, 6)).square().mean(), optimizer)
    assert [each.profile.model for each in attached.reports] == ["Sequential", "Linear"]


def test_a_copy_is_not_checked_either_while_an_optimizer_of_another_network_waits_for_its_turn(attach):
    waiting = torch.optim.SGD(nn.Linear(9, 9).parameters(), lr=0.1)
    attached = attach(rehearse=False, probes=False)
    for model in (small_model(), small_model()):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            step(model(torch.randn(8, 6)).square().mean(), optimizer)
    assert waiting is not None
    assert [each.profile.model for each in attached.reports] == ["Sequential"]


def test_a_program_that_changes_its_weights_by_hand_is_not_followed_for_long(attach, monkeypatch):
    model, modes = small_model(), torch._C._len_torch_function_stack()
    attached = attach(rehearse=False, probes=False)
    with monkeypatch.context() as patch:
        patch.setattr(attachment, "live_optimizers", list)  # other tests leave optimizers in this process
        for _ in range(MAX_HAND_MADE_STEPS + 1):
            model.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            with torch.no_grad():
                for each in model.parameters():
                    each -= 0.1 * each.grad
    assert attached.is_resting
    assert torch._C._len_torch_function_stack() == modes
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step(model(torch.randn(8, 6)).square().mean(), optimizer)
    assert [each.profile.model for each in attached.reports] == ["Sequential"]


def test_progress_is_shown_without_a_hook_of_every_step(tmp_path):
    model, ear = small_model(), Ear(shows_progress=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    store = WatchSettings(store=tmp_path / "run.leadline")
    attached = Attachment(RunSettings(rehearse=False, probes=False, watch=store), ear)
    for _ in range(20):
        step(model(torch.randn(8, 6)).square().mean(), optimizer)
    assert ear.progress
    assert attached.is_resting
    assert "after_step" not in attached.resting_events
    attached.close()


def test_optimizers_that_step_together_are_one_step(attach):
    model = small_model()
    optimizers = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[2].parameters())]
    attached = attach(lambda case: case)
    for _ in range(2):
        model(torch.randn(8, 6)).square().mean().backward()
        for each in optimizers:
            each.step()
    assert list(attached.result.optimizers) == optimizers


def test_an_optimizer_around_another_freezes_nothing_that_the_other_trains(attach):
    model = small_model()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = torch.optim.Adam(inner.param_groups)  # as sharpness-aware minimization wraps its base
    attached = attach(lambda case: [each.requires_grad for each in case.model.parameters()])
    for _ in range(2):
        step(model(torch.randn(8, 6)).square().mean(), inner)
    assert all(attached.result)
    assert outer.param_groups


def test_a_loss_without_modules_is_said_to_have_none(attach):
    weight = torch.randn(6, 1, requires_grad=True)
    attached = attach()
    step((torch.randn(8, 6) @ weight).square().mean(), torch.optim.SGD([weight], lr=0.1))
    assert "no module that is trained is called" in attached.audience.reasons[0]


def test_labels_that_are_refilled_in_place_keep_the_values_that_the_loss_read(attach):
    model, labels = small_model(), torch.ones(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attached = attach(replayed_loss)
    a = functional.mse_loss(model(torch.randn(8, 6)), labels)
    a.backward()
    labels.fill_(0.0)
    b = functional.mse_loss(model(torch.randn(8, 6)), labels)
    b.backward()
    labels.fill_(7.0)
    optimizer.step()
    assert attached.result[1] == pytest.approx((a + b).item())


def test_a_straight_through_estimator_is_followed_through_its_detached_part(attach):
    model, x = small_model(), torch.randn(8, 6)
    attached = attach(lambda case: case)
    z = model(x)
    step((z + (z.round() - z).detach()).square().mean(), torch.optim.SGD(model.parameters(), lr=0.1))
    output = torch.randn(8, 4)
    assert attached.result.loss(output).item() == pytest.approx(output.round().square().mean().item())


def test_a_target_network_without_gradients_is_part_of_the_batch(attach):
    model, target = small_model(), small_model()
    attached = attach(lambda case: case)
    x = torch.randn(8, 6)
    values = model(x)
    with torch.no_grad():
        expected = target(x) * 0.9
    step(functional.mse_loss(values, expected), torch.optim.SGD(model.parameters(), lr=0.1))
    assert attached.result.model is model


def test_samples_drawn_by_the_program_stay_as_they_were_drawn(attach):
    model, x = small_model(), torch.randn(8, 6)
    attached = attach(replayed_loss)
    distribution = torch.distributions.Categorical(logits=model(x))
    actions = distribution.sample()
    real = step(-distribution.log_prob(actions).mean(), torch.optim.SGD(model.parameters(), lr=0.1))
    assert attached.result[1] == pytest.approx(real)


def test_autocast_of_the_program_holds_for_the_case(attach):
    model, x = small_model(), torch.randn(8, 6)
    attached = attach(replayed_loss)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(x)
        loss = output.float().square().mean()
    real = step(loss, torch.optim.SGD(model.parameters(), lr=0.1))
    assert output.dtype == torch.bfloat16
    assert attached.result[1] == real


def test_the_factor_of_a_gradient_scaler_is_not_part_of_the_loss(attach):
    model, x = small_model(), torch.randn(8, 6)
    optimizer, scaler = (
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.amp.GradScaler("cpu", init_scale=1024.0),
    )
    attached = attach(replayed_loss)
    loss = model(x).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    assert attached.result[1] == pytest.approx(loss.item())


def test_a_closure_is_checked_where_it_computes_the_gradients(attach):
    model, x = small_model(), torch.randn(8, 6)
    optimizer = torch.optim.LBFGS(model.parameters())
    attached = attach(replayed_loss)
    losses = []

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        losses.append(loss.item())
        loss.backward()
        return loss

    optimizer.step(closure)
    assert attached.result[1] == pytest.approx(losses[0])


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad * ctx.saved_tensors[0]


def test_a_loss_of_a_custom_function_is_not_attributed_and_said_to_be_unseen(attach):
    model, x = small_model(), torch.randn(8, 6)
    attached = attach()
    step(Square.apply(model(x)).mean(), torch.optim.SGD(model.parameters(), lr=0.1))
    assert "custom autograd.Function" in attached.audience.reasons[0]


def test_the_rate_of_a_warm_up_is_replaced_by_what_it_leads_to_and_restored(attach):
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
    attached = attach(lambda case: [group["lr"] for group in case.optimizers[0].param_groups])
    step(model(torch.randn(8, 6)).square().mean(), optimizer)
    assert attached.result == [1e-3]
    assert optimizer.param_groups[0]["lr"] == 0.0


@pytest.mark.parametrize("has_leadline", [False, True])
def test_training_is_bit_for_bit_the_same(has_leadline, attach, request):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Dropout(0.3), nn.ReLU(), nn.Linear(12, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if has_leadline:
        attach(is_watched=True)
    for _ in range(6):
        step(functional.cross_entropy(model(torch.randn(16, 6)), torch.randint(4, (16,))), optimizer)
    state = [each.clone() for each in model.state_dict().values()] + [torch.rand(3)]
    expected = request.config.stash.setdefault(STATE, state)
    assert all(torch.equal(a, b) for a, b in zip(state, expected, strict=True))


STATE = pytest.StashKey[list[torch.Tensor]]()


def test_an_error_of_leadline_does_not_reach_the_program(attach, monkeypatch):
    def fail(*args, **kwargs):
        raise ZeroDivisionError("inside of Leadline")

    monkeypatch.setattr("leadline.runner.step_check.check_case", fail)
    monkeypatch.setattr("leadline.runner.watches.start_watch", fail)
    model = small_model()
    attached = attach(is_watched=True)
    for _ in range(3):
        step(model(torch.randn(8, 6)).square().mean(), torch.optim.SGD(model.parameters(), lr=0.1))
    assert "inside of Leadline" in attached.audience.reasons[0]
    assert "inside of Leadline" in attached.trouble


def test_an_error_of_the_tape_does_not_reach_the_program(attach, monkeypatch):
    def fail(*args, **kwargs):
        raise ZeroDivisionError("inside of Leadline")

    monkeypatch.setattr("leadline.runner.tape.Tape._add", fail)
    model = small_model()
    attached = attach()
    step(model(torch.randn(8, 6)).square().mean(), torch.optim.SGD(model.parameters(), lr=0.1))
    assert "inside of Leadline" in attached.trouble


def test_the_watch_gets_the_sum_of_the_losses_of_a_step(attach):
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attached = attach(is_watched=True, rehearse=False, probes=False)
    sums = []
    for _ in range(3):
        optimizer.zero_grad()
        losses = [model(torch.randn(8, 6)).square().mean() for _ in range(2)]
        for loss in losses:
            loss.backward()
        sums.append(sum(each.item() for each in losses))
        optimizer.step()
    assert list(attached.watch.history.scalars("loss").values) == pytest.approx(sums)


def test_modes_of_the_program_can_end_while_the_tape_runs(attach):
    model = small_model()
    attached = attach(lambda case: case)
    with torch.device("cpu"):
        loss = model(torch.randn(8, 6)).square().mean()
    step(loss, torch.optim.SGD(model.parameters(), lr=0.1))
    assert attached.result.model is model
    assert torch._C._len_torch_function_stack() == 0


def test_the_tape_is_on_the_stack_of_modes_once_after_a_backward_pass_and_notes_each_call_once(attach):
    model, attached = small_model(), attach(rehearse=False, probes=False)
    model(torch.randn(8, 6)).square().mean().backward()
    assert torch._C._len_torch_function_stack() == 1
    before = len(attached._tape.state.calls)
    torch.randn(3).square()
    assert len(attached._tape.state.calls) == before + 2


def test_the_tape_leaves_the_stack_of_modes_after_a_backward_pass_that_raised(attach):
    attached = attach(rehearse=False, probes=False)
    output = small_model()(torch.randn(8, 6))
    output.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        output.square().mean().backward()
    attached.close()
    assert torch._C._len_torch_function_stack() == 0


def test_a_program_that_steps_inside_its_backward_pass_is_left_without_a_mode(attach):
    model = small_model()
    optimizers = {each: torch.optim.SGD([each], lr=0.1) for each in model.parameters()}
    for each in optimizers:
        each.register_post_accumulate_grad_hook(lambda p: optimizers[p].step() or optimizers[p].zero_grad())
    attached = attach(rehearse=False, probes=False, is_watched=True)
    losses = []
    for _ in range(12):
        losses.append(model(torch.randn(8, 6)).square().mean())
        losses[-1].backward()
    model(torch.randn(8, 6))
    assert torch._C._len_torch_function_stack() == 0
    assert attached.audience.reasons == [attachment.IN_BACKWARD]
    assert attached.watch.step == 12
    assert attached.watch.history.scalars("loss").values == [each.item() for each in losses]
    assert (attached.trouble, attached.audience.alerts) == ("", [])


def test_an_error_of_leadline_inside_a_backward_pass_ends_the_tape_only(attach, monkeypatch):
    model, attached = small_model(), attach(rehearse=False, probes=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monkeypatch.setattr(attachment.Tape, "add_root", lambda self, root: 1 / 0)
    step(model(torch.randn(8, 6)).square().mean(), optimizer)
    assert attached.trouble.startswith("ZeroDivisionError")
    step(model(torch.randn(8, 6)).square().mean(), optimizer)
    assert not attached._tape.state.calls
    attached.close()
    assert torch._C._len_torch_function_stack() == 0


def test_an_evaluation_with_gradients_before_the_first_step_is_not_kept_on_the_tape(attach):
    model, x = small_model(), torch.randn(8, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attached = attach(replayed_loss)
    model.eval()
    outputs = [weakref.ref(model(x)) for _ in range(20)]
    assert sum(each() is not None for each in outputs) <= MAX_EVALUATION_CALLS
    model.train()
    real = step(model(x).square().mean(), optimizer)
    assert attached.result[1] == pytest.approx(real)
