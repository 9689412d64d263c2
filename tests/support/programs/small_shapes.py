"""Training loops in the shapes of public example collections, by name: `python small_shapes.py SHAPE`."""

import argparse
import hashlib

import torch
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


def pictures(count, size=12):
    """Images of four classes, and the classes."""
    labels = torch.randint(4, (count,))
    return torch.randn(4, 1, size, size)[labels] + 0.5 * torch.randn(count, 1, size, size), labels


def rows_as_sequence():
    """An LSTM reads the rows of an image; Adadelta with a schedule per epoch."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.norm = nn.LSTM(12, 24, batch_first=True), nn.BatchNorm1d(24)
            self.drop, self.head = nn.Dropout(0.2), nn.Linear(24, 4)

        def forward(self, x):
            return F.log_softmax(self.head(self.drop(self.norm(self.rnn(x[:, 0])[0][:, -1]))), dim=1)

    model = Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    schedule = StepLR(optimizer, step_size=1, gamma=0.7)
    loader = DataLoader(TensorDataset(*pictures(320)), batch_size=32, shuffle=True)
    for _ in range(3):
        for data, target in loader:
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            loss.backward()
            optimizer.step()
        print(loss.item())
        schedule.step()
    return model


def graph():
    """A graph convolution over one sparse graph; every step sees the whole graph, evaluated in each."""
    nodes, classes = 120, 4
    labels = torch.randint(classes, (nodes,))
    near = (labels[:, None] == labels) & (torch.rand(nodes, nodes) < 0.2) | torch.eye(nodes).bool()
    scale = near.sum(1).rsqrt()
    adjacency = (scale[:, None] * near * scale).to_sparse()
    features = F.one_hot(labels, classes).float() + torch.randn(nodes, classes)

    class Convolution(nn.Module):
        def __init__(self, inputs, outputs):
            super().__init__()
            self.kernel = nn.Parameter(torch.empty(inputs, outputs))
            nn.init.xavier_normal_(self.kernel)

        def forward(self, x, adjacency):
            return torch.spmm(adjacency, x @ self.kernel)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.drop = Convolution(4, 16), Convolution(16, 4), nn.Dropout(0.5)

        def forward(self, x, adjacency):
            hidden = self.drop(F.relu(self.one(x, adjacency)))
            return F.log_softmax(self.two(hidden, adjacency), dim=1)

    model = Net()
    order = torch.randperm(nodes)
    train, held_out = order[:80], order[80:]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for epoch in range(60):
        model.train()
        optimizer.zero_grad()
        loss = nn.NLLLoss()(model(features, adjacency)[train], labels[train])
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            output = model(features, adjacency)[held_out]
        if epoch % 20 == 0:
            print(loss.item(), F.nll_loss(output, labels[held_out]).item())
    return model


def larger_pictures():
    """Super-resolution: convolutions and a pixel shuffle."""
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 8, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(8, 4, 3, padding=1), nn.PixelShuffle(2)),
    )
    for each in model:
        if isinstance(each, nn.Conv2d):
            nn.init.orthogonal_(each.weight, nn.init.calculate_gain("relu"))
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    waves = torch.linspace(0, 6, 16)
    for step in range(60):
        phase = 6 * torch.rand(8, 1, 1, 1)
        target = torch.sin(waves + phase) * torch.cos(waves[:, None] + phase)
        optimizer.zero_grad()
        loss = criterion(model(target[..., ::2, ::2]), target)
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(loss.item())
    return model


def pairs():
    """A siamese network: one tower called twice, a binary loss on the pair."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.tower = nn.Sequential(nn.Flatten(), nn.Linear(144, 32), nn.ReLU(), nn.Linear(32, 16))
            self.head = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))

        def forward(self, first, second):
            both = torch.cat((self.tower(first), self.tower(second)), 1)
            return torch.sigmoid(self.head(both))

    model, criterion = Net(), nn.BCELoss()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    images, labels = pictures(512)
    for step in range(60):
        first, second = torch.randint(512, (2, 32))
        targets = (labels[first] == labels[second]).float()
        optimizer.zero_grad()
        loss = criterion(model(images[first], images[second]).squeeze(), targets)
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(loss.item())
    return model


def cells_in_time():
    """LSTM cells step by step in double precision, LBFGS over all data, then a free prediction."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.head = nn.LSTMCell(1, 12), nn.Linear(12, 1)

        def forward(self, x, future=0):
            outputs, state = [], None
            for place in range(x.shape[1] + future):
                value = x[:, place, None] if place < x.shape[1] else outputs[-1]
                state = self.cell(value, state)
                outputs.append(self.head(state[0]))
            return torch.cat(outputs, 1)

    model = Net().double()
    waves = torch.sin(torch.arange(30) / 3 + 6 * torch.rand(12, 1)).double()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8)
    for _ in range(4):

        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(model(waves[:, :-1]), waves[:, 1:])
            loss.backward()
            return loss

        print(optimizer.step(closure).item())
        with torch.no_grad():
            print(model(waves[:2, :-1], future=10).sum().item())
    return model


def vision_transformer():
    """A small vision transformer with a class token; the loop belongs to an object."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.token = nn.Linear(16, 32), nn.Parameter(torch.randn(1, 1, 32))
            self.position = nn.Parameter(0.02 * torch.randn(1, 10, 32))
            layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, "gelu", batch_first=True, norm_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 4))

        def forward(self, x):
            patches = x.unfold(2, 4, 4).unfold(3, 4, 4).reshape(len(x), 9, 16)
            words = torch.cat((self.token.expand(len(x), -1, -1), self.embed(patches)), 1)
            return self.head(self.encoder(words + self.position)[:, 0])

    class Training:
        def __init__(self, model, loader):
            self.model, self.loader = model, loader
            self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)

        def epoch(self):
            total = 0.0
            for images, labels in self.loader:
                self.optimizer.zero_grad()
                loss = nn.CrossEntropyLoss()(self.model(images), labels)
                loss.backward()
                self.optimizer.step()
                total += loss.item()
            return total / len(self.loader)

    training = Training(Net(), DataLoader(TensorDataset(*pictures(320)), batch_size=32, shuffle=True))
    for _ in range(3):
        print(training.epoch())
    return training.model


def layer_by_layer():
    """Forward-forward: each layer has an optimizer and a loss of its own, and is called through `forward`."""

    class Layer(nn.Linear):
        def __init__(self, inputs, outputs):
            super().__init__(inputs, outputs)
            self.optimizer = torch.optim.Adam(self.parameters(), lr=0.03)

        def forward(self, x):
            return F.relu(F.linear(x / (x.norm(2, 1, keepdim=True) + 1e-4), self.weight, self.bias))

        def train_layer(self, good, bad):
            for _ in range(15):
                a, b = self.forward(good).pow(2).mean(1), self.forward(bad).pow(2).mean(1)
                loss = F.softplus(torch.cat([2 - a, b - 2])).mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            print(loss.item())
            return self.forward(good).detach(), self.forward(bad).detach()

    images, labels = pictures(128)
    good, bad = images.flatten(1).clone(), images.flatten(1).clone()
    good[:, :4] = 3 * F.one_hot(labels, 4)
    bad[:, :4] = 3 * F.one_hot((labels + 1) % 4, 4)
    layers = nn.ModuleList([Layer(144, 48), Layer(48, 48)])
    for layer in layers:
        good, bad = layer.train_layer(good, bad)
    return layers


def actor_and_critic():
    """Actor and critic in one network, one loss per episode of a small walk."""

    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.action, self.value = nn.Linear(2, 32), nn.Linear(32, 2), nn.Linear(32, 1)

        def forward(self, x):
            x = F.relu(self.body(x))
            return F.softmax(self.action(x), dim=-1), self.value(x)

    model = Policy()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    for episode in range(40):
        place, saved, rewards = 0.0, [], []
        for step in range(12):
            chances, value = model(torch.tensor([place, step / 12]))
            distribution = torch.distributions.Categorical(chances)
            action = distribution.sample()
            place += 0.5 * (2 * action.item() - 1)
            rewards.append(-abs(place - 2))
            saved.append((distribution.log_prob(action), value))
        returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
        returns = (returns - returns.mean()) / (returns.std() + 1e-6)
        policy_losses = [-log * (r - value.item()) for (log, value), r in zip(saved, returns, strict=True)]
        value_losses = [
            F.smooth_l1_loss(value, r[None]) for (_, value), r in zip(saved, returns, strict=True)
        ]
        optimizer.zero_grad()
        loss = torch.stack(policy_losses).sum() + torch.stack(value_losses).sum()
        loss.backward()
        optimizer.step()
        if episode % 10 == 0:
            print(sum(rewards))
    return model


def by_hand():
    """A polynomial is fitted without an optimizer: gradients are applied by hand."""
    truth, model = torch.randn(4, 1), nn.Linear(4, 1)
    for step in range(200):
        x = torch.randn(32)[:, None] ** torch.arange(1, 5)
        model.zero_grad()
        loss = F.smooth_l1_loss(model(x), x @ truth + 0.5)
        loss.backward()
        for each in model.parameters():
            each.data.add_(-0.05 * each.grad)
        if step % 50 == 0:
            print(loss.item())
    return model


def step_in_backward():
    """Each parameter has an optimizer, which steps as soon as its gradient is there."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizers = {each: torch.optim.Adam([each], lr=3e-3, foreach=False) for each in model.parameters()}

    def step_now(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for each in optimizers:
        each.register_post_accumulate_grad_hook(step_now)
    for data, target in DataLoader(TensorDataset(*pictures(640)), batch_size=32, shuffle=True):
        loss = F.cross_entropy(model(data), target)
        loss.backward()
    print(loss.item())
    return model


def _train_in_process(model, data, target):
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    for _ in range(20):
        optimizer.zero_grad()
        F.cross_entropy(model(data), target).backward()
        optimizer.step()


def processes():
    """Weights in shared memory, trained by processes that the program spawns, one after the other."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 16), nn.ReLU(), nn.Linear(16, 4))
    model.share_memory()
    data, target = pictures(64)
    for _ in range(2):
        process = mp.get_context("spawn").Process(target=_train_in_process, args=(model, data, target))
        process.start()
        process.join()
    with torch.no_grad():
        print(F.cross_entropy(model(data), target).item())
    return model


SHAPES = {
    each.__name__: each
    for each in (
        *(rows_as_sequence, graph, larger_pictures, pairs, cells_in_time, vision_transformer),
        *(layer_by_layer, actor_and_critic, by_hand, step_in_backward, processes),
    )
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("shape", choices=SHAPES)
    model = SHAPES[parser.parse_args().shape]()
    content = b"".join(each.detach().contiguous().numpy().tobytes() for each in model.parameters())
    print("weights", hashlib.sha256(content).hexdigest())
