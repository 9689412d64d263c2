"""Q-learning with a replay memory on a grid with a goal and pits; sixteen grids are played at once."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--bug", default="")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
SIZE, GAMMA = 5, 0.95
MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])
PITS = torch.tensor([[1, 3], [3, 1]])


class Grids:
    def __init__(self, count):
        self.at = torch.randint(0, 2, (count, 2))

    def state(self):
        return nn.functional.one_hot(self.at[:, 0] * SIZE + self.at[:, 1], SIZE * SIZE).float()

    def step(self, action):
        self.at = (self.at + MOVES[action]).clamp(0, SIZE - 1)
        goal = (self.at == SIZE - 1).all(1)
        pit = (self.at[:, None] == PITS).all(2).any(1)
        reward = goal.float() - pit.float() - 0.02
        after, done = self.state(), goal | pit
        self.at[done] = torch.randint(0, SIZE - 1, (int(done.sum()), 2))
        return reward, after, done.float()


def greedy_return(net):
    grids, total, alive, factor = Grids(64), torch.zeros(64), torch.ones(64), 1.0
    for _ in range(20):
        with torch.no_grad():
            reward, _, done = grids.step(net(grids.state()).argmax(1))
        total, alive, factor = total + factor * alive * reward, alive * (1 - done), factor * GAMMA
    return total.mean().item()


torch.manual_seed(args.seed)
net = nn.Sequential(nn.Linear(SIZE * SIZE, 64), nn.ReLU(), nn.Linear(64, 4))
target_net = nn.Sequential(nn.Linear(SIZE * SIZE, 64), nn.ReLU(), nn.Linear(64, 4))
target_net.load_state_dict(net.state_dict())
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
grids, memory = Grids(16), []
for step in range(500):
    state = grids.state()
    with torch.no_grad():
        action = net(state).argmax(1)
    explore = torch.rand(16) < max(0.1, 1 - step / 250)
    action = torch.where(explore, torch.randint(0, 4, (16,)), action)
    memory.append((state, action, *grids.step(action)))
    if step < 20:
        continue
    picks = torch.randint(0, len(memory), (12,)).tolist()
    s, a, r, s2, done = (torch.cat(parts) for parts in zip(*(memory[i] for i in picks), strict=True))
    q = net(s).gather(1, a[:, None]).squeeze(1)
    if args.bug == "target_keeps_gradient":
        q_next = net(s2).max(1).values
    elif args.bug == "no_target_network":
        q_next = net(s2).max(1).values.detach()
    else:
        q_next = target_net(s2).max(1).values.detach()
    q_target = r + GAMMA * q_next if args.bug == "done_not_used" else r + GAMMA * (1 - done) * q_next
    loss = nn.functional.smooth_l1_loss(q, q_target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        target_net.load_state_dict(net.state_dict())
    if step % 100 == 0:
        print(f"step {step} loss {loss.item():.4f}")
print(f"metric {greedy_return(net):.4f}")
