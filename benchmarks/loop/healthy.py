"""Healthy training programs that do on purpose what looks like a mistake; each returns its watches."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.loop.programs import PROGRAMS, train

STEPS = 2500
Start = Callable[..., Any]


def _mlp(inputs: int, outputs: int, *, dropout: float = 0.0) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Dropout(dropout), nn.Linear(32, outputs))


def _batch(size: int = 16) -> tuple[Tensor, Tensor]:
    x = torch.randn(size, 8)
    return x, (x[:, 0] + x[:, 1] > 0).long()


def _planted(name: str) -> Callable[[Start], list[Any]]:
    return lambda start: [train(PROGRAMS[name](), "", start, steps=STEPS)]


def accumulation(start: Start) -> list[Any]:
    """Gradients of eight parts are averaged; `zero_grad` comes after the step."""
    model = _mlp(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with start(model, optimizer) as watch:
        for part in range(8 * STEPS // 4):
            x, y = _batch()
            (F.cross_entropy(model(x), y) / 8).backward()
            if part % 8 == 7:
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
    return [watch]


def game(start: Start) -> list[Any]:
    """A generator and its critic, each with its own optimizer and losses."""
    generator, critic = _mlp(4, 2), _mlp(2, 1)
    makers = (
        torch.optim.Adam(each.parameters(), lr=1e-3, betas=(0.5, 0.999)) for each in (generator, critic)
    )
    generator_step, critic_step = makers
    watches = [start(generator, generator_step), start(critic, critic_step)]
    ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)
    for step in range(STEPS):
        real, noise = torch.randn(16, 2) * 0.3 + 1, torch.randn(16, 4)
        critic.zero_grad()
        F.binary_cross_entropy_with_logits(critic(real), ones).backward()
        made = generator(noise)
        F.binary_cross_entropy_with_logits(critic(made.detach()), zeros).backward()
        critic_step.step()
        generator.zero_grad()
        loss = F.binary_cross_entropy_with_logits(critic(made), ones)
        watches[0].loss(loss)
        loss.backward()
        generator_step.step()
        if step % 100 == 0:
            with torch.no_grad():
                generator(torch.randn(16, 4))
    for watch in watches:
        watch.close()
    return watches


def q_learning(start: Start) -> list[Any]:
    """Q-learning with a target network that follows the trained one."""
    policy, target = _mlp(4, 2), _mlp(4, 2)
    target.load_state_dict(policy.state_dict())
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    state, memory = torch.zeros(4), []
    with start(policy, optimizer) as watch:
        for step in range(STEPS):
            with torch.no_grad():
                action = (
                    int(policy(state[None]).argmax()) if torch.rand(()) > 0.1 else int(torch.randint(2, ()))
                )
            following = (0.9 * state + 0.3 * (2 * action - 1) + 0.1 * torch.randn(4)).clamp(-3, 3)
            memory.append((state, action, -following.abs().sum(), following))
            state = following
            picks = torch.randint(len(memory), (16,)).tolist()
            states, actions, rewards, nexts = zip(*(memory[each] for each in picks), strict=True)
            with torch.no_grad():
                goal = torch.stack(rewards) + 0.95 * target(torch.stack(nexts)).max(1).values
            answers = policy(torch.stack(states)).gather(1, torch.tensor(actions)[:, None])[:, 0]
            optimizer.zero_grad()
            F.smooth_l1_loss(answers, goal).backward()
            nn.utils.clip_grad_value_(policy.parameters(), 100)
            optimizer.step()
            if step % 100 == 0:
                target.load_state_dict(policy.state_dict())
    return [watch]


def policy_optimization(start: Start) -> list[Any]:
    """Several epochs over one rollout, with a policy that acts without gradients between them."""
    policy, critic = _mlp(4, 2), _mlp(4, 1)
    optimizer = torch.optim.Adam([*policy.parameters(), *critic.parameters()], lr=1e-3)
    with start(nn.ModuleDict({"policy": policy, "critic": critic}), optimizer) as watch:
        while watch.step < STEPS:
            states = torch.randn(64, 4)
            with torch.no_grad():
                actions = torch.distributions.Categorical(logits=policy(states)).sample()
                old = torch.distributions.Categorical(logits=policy(states)).log_prob(actions)
                rewards = (states.sum(1) > 0).float() * (2.0 * actions - 1)
            for _ in range(10):
                chance = torch.distributions.Categorical(logits=policy(states))
                ratio = (chance.log_prob(actions) - old).exp()
                values = critic(states)[:, 0]
                gain = (rewards - values).detach()
                objective = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                optimizer.zero_grad()
                (-objective + F.mse_loss(values, rewards) - 0.01 * chance.entropy().mean()).backward()
                nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
                optimizer.step()
    return [watch]


def actor_and_critic(start: Start) -> list[Any]:
    """Two optimizers with losses of their own in each step."""
    actor, critic = _mlp(4, 2), _mlp(4, 1)
    both = [torch.optim.Adam(each.parameters(), lr=1e-3) for each in (actor, critic)]
    with start(nn.ModuleDict({"actor": actor, "critic": critic}), both) as watch:
        for _ in range(STEPS):
            states = torch.randn(16, 4)
            chance = torch.distributions.Categorical(logits=actor(states))
            actions = chance.sample()
            rewards = (states.sum(1) > 0).float() * (2.0 * actions - 1)
            values = critic(states)[:, 0]
            both[1].zero_grad()
            F.mse_loss(values, rewards).backward()
            both[1].step()
            both[0].zero_grad()
            (-(chance.log_prob(actions) * (rewards - values.detach())).mean()).backward()
            both[0].step()
    return [watch]


def inner_loops(start: Start) -> list[Any]:
    """Reptile: a copy is trained on each task, and the weights move toward it."""
    model = _mlp(1, 1)
    outer = torch.optim.SGD(model.parameters(), lr=0.1)
    with start(model, outer) as watch:
        for _ in range(STEPS // 5):
            shift = torch.rand(()) * 6
            fast = copy.deepcopy(model)
            inner = torch.optim.Adam(fast.parameters(), lr=1e-2)
            for _ in range(5):
                x = torch.rand(16, 1) * 6 - 3
                inner.zero_grad()
                F.mse_loss(fast(x), torch.sin(x + shift)).backward()
                inner.step()
            outer.zero_grad()
            for slow, moved in zip(model.parameters(), fast.parameters(), strict=True):
                slow.grad = (slow - moved).detach()
            outer.step()
    return [watch]


def meta_gradients(start: Start) -> list[Any]:
    """MAML: one differentiable inner step per task."""
    model = _mlp(1, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with start(model, optimizer) as watch:
        for _ in range(STEPS // 2):
            optimizer.zero_grad()
            for _ in range(2):
                shift = torch.rand(()) * 1.5  # tasks that are alike enough for 1,250 steps
                x, other = torch.rand(16, 1) * 6 - 3, torch.rand(16, 1) * 6 - 3
                weights = dict(model.named_parameters())
                loss = F.mse_loss(torch.func.functional_call(model, weights, x), torch.sin(x + shift))
                steps = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
                fast = {
                    name: each - 0.05 * step
                    for (name, each), step in zip(weights.items(), steps, strict=True)
                }
                answers = torch.func.functional_call(model, fast, other)
                (F.mse_loss(answers, torch.sin(other + shift)) / 2).backward()
            optimizer.step()
    return [watch]


def sharpness_aware(start: Start) -> list[Any]:
    """SAM: two backward passes per step, with a perturbation that is taken back."""
    model = _mlp(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with start(model, optimizer) as watch:
        for _ in range(STEPS):
            x, y = _batch()
            F.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                norm = torch.stack([each.grad.norm() for each in model.parameters()]).norm()
                moves = [each.grad * (0.05 / (norm + 1e-12)) for each in model.parameters()]
                for each, move in zip(model.parameters(), moves, strict=True):
                    each.add_(move)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for each, move in zip(model.parameters(), moves, strict=True):
                    each.sub_(move)
            optimizer.step()
            optimizer.zero_grad()
    return [watch]


def closures(start: Start) -> list[Any]:
    """L-BFGS, which evaluates a closure several times per step, on all the data."""
    model = _mlp(8, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    x = torch.randn(64, 8)
    y = torch.sin(x[:, :1])

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    with start(model, optimizer) as watch:
        for _ in range(STEPS // 5):
            optimizer.step(closure)
    return [watch]


def one_batch(start: Start) -> list[Any]:
    """One batch of a loader is fitted as a test."""
    model = _mlp(8, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = torch.randn(256, 8)
    x = next(iter(DataLoader(data, 16, shuffle=True)))
    y = (x[:, 0] > 0).long()
    with start(model, optimizer) as watch:
        for _ in range(STEPS):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return [watch]


def averaged_weights(start: Start) -> list[Any]:
    """An average of the weights is swapped in for evaluation, and gets new statistics for its batch norm."""
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    validation = [_batch() for _ in range(8)]
    with start(model, optimizer) as watch:
        for step in range(STEPS):
            x, y = _batch()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            average.update_parameters(model)
            if step % 100 == 99:
                own = copy.deepcopy(model.state_dict())
                model.load_state_dict(average.module.state_dict())
                model.eval()
                with torch.no_grad():
                    for x, _ in validation:
                        model(x)
                model.load_state_dict(own)
                model.train()
        torch.optim.swa_utils.update_bn(validation, average)
    return [watch]


def teacher(start: Start) -> list[Any]:
    """A momentum encoder in train mode makes the targets; its weights follow by `.data`."""
    student = _mlp(8, 8, dropout=0.1)
    guide = copy.deepcopy(student)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    with start(student, optimizer) as watch:
        for _ in range(STEPS):
            x, _ = _batch()
            with torch.no_grad():
                goal = guide(x + 0.1 * torch.randn_like(x))
            optimizer.zero_grad()
            F.mse_loss(student(x + 0.1 * torch.randn_like(x)), goal).backward()
            optimizer.step()
            for own, other in zip(guide.parameters(), student.parameters(), strict=True):
                own.data.mul_(0.99).add_(other.data, alpha=0.01)
    return [watch]


def contrast(start: Start) -> list[Any]:
    """A contrastive loss whose answer is always the first class."""
    model = _mlp(8, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with start(model, optimizer) as watch:
        for _ in range(STEPS):
            x, _ = _batch()
            anchors, others = model(x), model(x + 0.1 * torch.randn_like(x))
            positive = (anchors * others).sum(1, keepdim=True)
            negative = anchors @ torch.randn(8, 15)
            optimizer.zero_grad()
            F.cross_entropy(torch.cat([positive, negative], 1), torch.zeros(16, dtype=torch.long)).backward()
            optimizer.step()
    return [watch]


def frozen_statistics(start: Start) -> list[Any]:
    """Fine-tuning of a pretrained network in eval mode, with a small rate and a frozen body."""
    body = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU())
    for _ in range(20):
        body(torch.randn(32, 8))
    model = nn.Sequential(body, nn.Linear(32, 2)).eval()
    body.requires_grad_(requires_grad=False)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-5)
    with start(model, optimizer) as watch:
        for _ in range(STEPS):
            x, y = _batch()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return [watch]


def two_optimizers(start: Start) -> list[Any]:
    """One loss, two optimizers: matrices and the rest."""
    model = _mlp(8, 2)
    matrices = [each for each in model.parameters() if each.dim() > 1]
    rest = [each for each in model.parameters() if each.dim() < 2]
    both = [torch.optim.SGD(matrices, lr=0.02, momentum=0.9), torch.optim.AdamW(rest, lr=1e-3)]
    schedules = [CosineAnnealingLR(each, STEPS) for each in both]
    with start(model, both) as watch:
        for _ in range(STEPS):
            x, y = _batch()
            F.cross_entropy(model(x), y).backward()
            for each in (*both, *schedules):
                each.step()
            for each in both:
                each.zero_grad()
    return [watch]


def warm_up(start: Start) -> list[Any]:
    """Warm-up from zero, a long cosine to zero, early stopping that restores the best weights, a second phase."""
    model = _mlp(8, 2, dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = LambdaLR(
        optimizer,
        lambda step: min(1.0, step / 200) * 0.5 * (1 + float(torch.tensor(torch.pi * step / STEPS).cos())),
    )
    best = copy.deepcopy(model.state_dict())
    with start(model, optimizer) as watch:
        for step in range(STEPS):
            x, y = _batch()
            optimizer.zero_grad(set_to_none=False)
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
            optimizer.step()
            schedule.step()
            if step % 500 == 499:
                best = copy.deepcopy(model.state_dict())
        model.load_state_dict(best)
    return [watch]


def curriculum(start: Start) -> list[Any]:
    """Harder data from phase to phase, several heads of which each batch uses one, imbalanced classes."""
    body, heads = _mlp(8, 16), nn.ModuleList(nn.Linear(16, 2) for _ in range(3))
    model = nn.ModuleDict({"body": body, "heads": heads})
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = OneCycleLR(optimizer, 1e-2, total_steps=STEPS + 1)
    with start(model, optimizer) as watch:
        for step in range(STEPS):
            x, _ = _batch()
            y = (x[:, 0] > 3 - step / STEPS).long()
            model.zero_grad()
            F.cross_entropy(heads[step % 3](body(x)), y).backward()
            optimizer.step()
            schedule.step()
    return [watch]


def loader_epochs(start: Start) -> list[Any]:
    """Many short epochs over a loader with workers' settings, with an evaluation after each, without `no_grad`."""
    x = torch.randn(256, 8)
    y = (x[:, 0] > 0).long()
    loader = DataLoader(TensorDataset(x, y), 32, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=20)
    with start(model, optimizer) as watch:
        for _ in range(STEPS // 8):
            model.train()
            for batch, labels in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(batch), labels)
                loss.backward()
                optimizer.step()
            model.eval()
            total = sum(
                F.cross_entropy(model(each), labels).item() for each, labels in [_batch() for _ in range(5)]
            )
            schedule.step(total)
    return [watch]


def evolution(start: Start) -> list[Any]:
    """Gradients are estimated and set by hand, without any backward pass."""
    model = _mlp(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with start(model, optimizer) as watch, torch.no_grad():
        for _ in range(STEPS // 2):
            x = torch.randn(32, 8)
            moves = [torch.randn_like(each) * 0.05 for each in model.parameters()]
            losses = []
            for sign in (1, -2):
                for each, move in zip(model.parameters(), moves, strict=True):
                    each.add_(sign * move)
                losses.append(F.mse_loss(model(x), torch.sin(x[:, :1])))
            for each, move in zip(model.parameters(), moves, strict=True):
                each.add_(move)
                each.grad = (losses[0] - losses[1]) / 0.005 * move
            optimizer.step()
    return [watch]


def lightning(start: Start) -> list[Any]:
    """Lightning's trainer with its own loop."""
    import lightning.pytorch as pl

    from leadline.integrations.lightning import LeadlineCallback

    class Task(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = _mlp(8, 2, dropout=0.1)

        def training_step(self, batch: Any, _: int) -> Tensor:
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, _: int) -> None:
            self.net(batch[0])

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    x = torch.randn(512, 8)
    data = TensorDataset(x, (x[:, 0] > 0).long())
    callback = LeadlineCallback()
    trainer = pl.Trainer(
        max_steps=STEPS // 2,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        accelerator="cpu",
    )
    trainer.fit(Task(), DataLoader(data, 16, shuffle=True), DataLoader(TensorDataset(*_batch(128)), 16))
    return [callback.watch]


HEALTHY: dict[str, Callable[[Start], list[Any]]] = {
    **{name: _planted(name) for name in PROGRAMS},
    "gradient accumulation": accumulation,
    "generator and critic": game,
    "Q-learning": q_learning,
    "policy optimization": policy_optimization,
    "actor and critic": actor_and_critic,
    "inner loops (Reptile)": inner_loops,
    "meta-gradients (MAML)": meta_gradients,
    "sharpness-aware (SAM)": sharpness_aware,
    "closures (L-BFGS)": closures,
    "one batch as a test": one_batch,
    "averaged weights": averaged_weights,
    "momentum teacher": teacher,
    "contrastive": contrast,
    "frozen statistics": frozen_statistics,
    "two optimizers, one loss": two_optimizers,
    "warm-up and cosine": warm_up,
    "curriculum with heads": curriculum,
    "epochs with evaluation": loader_epochs,
    "evolution strategy": evolution,
    "Lightning": lightning,
}
