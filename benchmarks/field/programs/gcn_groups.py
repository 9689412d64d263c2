"""Groups of people found from noisy features and from who knows whom; eight graphs per batch."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

NODES, GROUPS = 30, 3


def graph():
    group = torch.randint(0, GROUPS, (NODES,))
    same = group[:, None] == group
    links = torch.rand(NODES, NODES) < torch.where(same, 0.5, 0.05)
    links = torch.triu(links, 1)
    edges = (links | links.T).nonzero().T
    return F.one_hot(group, GROUPS).float() * 0.6 + torch.randn(NODES, GROUPS), edges, group


def batch_of(graphs, bug):
    features, groups = torch.cat([g[0] for g in graphs]), torch.cat([g[2] for g in graphs])
    if bug == "edges_of_one_graph":
        edges = torch.cat([g[1] for g in graphs], 1)
    else:
        edges = torch.cat([g[1] + NODES * i for i, g in enumerate(graphs)], 1)
    if bug != "no_self_loops":
        loops = torch.arange(len(features))
        edges = torch.cat([edges, torch.stack([loops, loops])], 1)
    return features, edges, groups


class GraphConv(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x, edges):
        source, target = edges
        degree = torch.zeros(len(x)).index_add(0, target, torch.ones(len(target))).clamp(min=1)
        total = torch.zeros_like(x).index_add(0, target, x[source])
        return self.linear(total / degree[:, None])


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = GraphConv(GROUPS, 32), GraphConv(32, GROUPS)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x, edges):
        x = self.dropout(F.relu(self.conv1(x, edges)))
        return self.conv2(x, edges)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bug", default="")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    graphs, test = [graph() for _ in range(160)], [graph() for _ in range(40)]
    model = GCN()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(6):
        model.train()
        for start in range(0, len(graphs), 8):
            x, edges, y = batch_of(graphs[start : start + 8], args.bug)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x, edges), y)
            loss.backward()
            if args.bug == "clip_after_step":
                optimizer.step()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            else:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        if args.bug != "no_eval":
            model.eval()
        with torch.no_grad():
            x, edges, y = batch_of(test, args.bug)
            accuracy = (model(x, edges).argmax(1) == y).float().mean().item()
        print(f"epoch {epoch} loss {loss.item():.3f} test {accuracy:.3f}")
    print(f"metric {accuracy:.4f}")


if __name__ == "__main__":
    main()
