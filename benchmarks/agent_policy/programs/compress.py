import torch
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self, size=32, code=6):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, code))
        self.decoder = nn.Sequential(nn.Linear(code, 64), nn.Tanh(), nn.Linear(64, size))

    def forward(self, x):
        code = self.encoder(x)
        return self.decoder(code)


def signals(samples):
    generator = torch.Generator().manual_seed(5)
    basis = torch.randn(4, 32, generator=generator)
    return torch.tanh(torch.randn(samples, 4, generator=generator) @ basis / 2)


def main():
    torch.manual_seed(4)
    data = signals(2400)
    train, test = data[:2000], data[2000:]
    model = Autoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    mse = nn.MSELoss()
    for step in range(400):
        batch = train[torch.randint(0, len(train), (64,))]
        reconstruction = model(batch)
        loss = mse(reconstruction, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        error = (model(test) - test).square().mean()
    print(f"score {1 - error / test.var():.4f}")


if __name__ == "__main__":
    main()
