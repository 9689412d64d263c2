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
from examples.applications.solving import Application, main

WIDTH = 32
SIZES = torch.tensor(
    [0.1, 0.5, 0.1, 0.9]
)  # position, speed, angle, turning: about their spread under random pushes
DISCOUNT = 0.8
EPISODES = 200  # of pushing at random, to learn from
TRIES = 10  # episodes of the policy that is scored


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


@cache
def experience() -> tuple[Tensor, Tensor, Tensor]:
    """States, actions, and the discounted reward that followed (standardized), of a policy that pushes at random."""
    environment = gymnasium.make("CartPole-v1")
    generator = torch.Generator().manual_seed(0)
    states, actions, returns = [], [], []
    for episode in range(EPISODES):
        length, state, over = 0, environment.reset(seed=episode)[0], False
        while not over:
            action = int(torch.randint(2, (), generator=generator))
            states.append(torch.tensor(state))
            actions.append(action)
            state, _, fallen, late, _ = environment.step(action)
            length, over = length + 1, fallen or late
        returns += [(1 - DISCOUNT**left) / (1 - DISCOUNT) for left in range(length, 0, -1)]
    worth = torch.tensor(returns)
    return torch.stack(states), torch.tensor(actions), (worth - worth.mean()) / worth.std()


def batches(count: int, rows: int = 128) -> list[tuple[Tensor, Tensor]]:
    states, actions, returns = experience()
    chosen = torch.randint(len(states), (count, rows), generator=torch.Generator().manual_seed(1))
    done = torch.stack([actions.float(), returns], dim=1)
    return [(states[index] / SIZES, done[index]) for index in chosen]


def critic_loss(values: Tensor, done: Tensor) -> Tensor:
    """Squared error of the value of the action that was taken."""
    taken = values.gather(1, done[:, :1].long())
    return F.mse_loss(taken, done[:, 1:])


def build(blocks: int = 60) -> leadline.Case:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, WIDTH), *(Block() for _ in range(blocks)), nn.Linear(WIDTH, 2))
    data = batches(200)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return leadline.Case(model, *data[0], critic_loss, optimizer, data)


def score(critic: nn.Module) -> float:
    """Mean number of steps for which the pole stays up when the critic's better action is taken."""
    environment = gymnasium.make("CartPole-v1")
    steps = 0
    for episode in range(TRIES):
        state, over = environment.reset(seed=1000 + episode)[0], False
        while not over:
            action = int(critic((torch.tensor(state) / SIZES)[None]).argmax())
            state, _, fallen, late, _ = environment.step(action)
            steps, over = steps + 1, fallen or late
    return steps / TRIES


APPLICATION = Application(build=build, score=score, unit="steps the pole stays up", fix="zero-mean")

if __name__ == "__main__":
    main(APPLICATION)
