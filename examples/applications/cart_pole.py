"""Reinforcement learning: a deep residual critic for the cart and pole, and the policy that follows it.

A critic Q(state, action) is fitted to the returns of a policy that pushes at random. The policy that always takes
the critic's better action is one step of policy improvement, and its score is how long it keeps the pole up.
The critic's sixty blocks end in their activation, as in "1000 layer networks for self-supervised RL" (arXiv
2503.14858): their means add up.

    python -m examples.applications.cart_pole [--quick]

Needs gymnasium.
"""

from __future__ import annotations

from functools import cache

import gymnasium
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import leadline
from examples.applications.application import Application, main

WIDTH = 32
# Position, velocity, angle and angular velocity: about their standard deviation under random pushes.
STATE_SCALES = torch.tensor([0.1, 0.5, 0.1, 0.9])
DISCOUNT = 0.8
TRAINING_EPISODES = 200
SCORED_EPISODES = 10


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


@cache
def experience() -> tuple[Tensor, Tensor, Tensor]:
    """Return states, actions and standardized discounted returns of a policy that pushes at random."""
    environment = gymnasium.make("CartPole-v1")
    generator = torch.Generator().manual_seed(0)
    states, actions, returns = [], [], []
    for episode in range(TRAINING_EPISODES):
        length, state, over = 0, environment.reset(seed=episode)[0], False
        while not over:
            action = int(torch.randint(2, (), generator=generator))
            states.append(torch.tensor(state))
            actions.append(action)
            state, _, fallen, late, _ = environment.step(action)
            length, over = length + 1, fallen or late
        returns += [(1 - DISCOUNT**left) / (1 - DISCOUNT) for left in range(length, 0, -1)]
    values = torch.tensor(returns)
    return torch.stack(states), torch.tensor(actions), (values - values.mean()) / values.std()


def batches(count: int, rows: int = 128) -> list[tuple[Tensor, Tensor]]:
    states, actions, returns = experience()
    chosen = torch.randint(len(states), (count, rows), generator=torch.Generator().manual_seed(1))
    targets = torch.stack([actions.float(), returns], dim=1)
    return [(states[index] / STATE_SCALES, targets[index]) for index in chosen]


def critic_loss(values: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error of the value of each action; `targets` holds actions and returns."""
    action_values = values.gather(1, targets[:, :1].long())
    return F.mse_loss(action_values, targets[:, 1:])


def build(blocks: int = 60) -> leadline.Case:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, WIDTH), *(Block() for _ in range(blocks)), nn.Linear(WIDTH, 2))
    data = batches(200)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return leadline.Case(model, *data[0], critic_loss, optimizer, data)


def score(critic: nn.Module) -> float:
    """Return the mean number of steps for which the pole stays up when the critic's better action is taken."""
    environment = gymnasium.make("CartPole-v1")
    steps = 0
    for episode in range(SCORED_EPISODES):
        state, over = environment.reset(seed=1000 + episode)[0], False
        while not over:
            action = int(critic((torch.tensor(state) / STATE_SCALES)[None]).argmax())
            state, _, fallen, late, _ = environment.step(action)
            steps, over = steps + 1, fallen or late
    return steps / SCORED_EPISODES


APPLICATION = Application(build=build, score=score, unit="steps the pole stays up", fix="zero-mean")

if __name__ == "__main__":
    main(APPLICATION)
