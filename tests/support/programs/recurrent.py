"""A word language model with truncated backpropagation: the hidden state is detached and passed on; updates by hand."""

import torch
from torch import nn

torch.manual_seed(1111)
tokens, bptt, batch = 40, 12, 6


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(tokens, 32)
        self.rnn = nn.LSTM(32, 32, 2, dropout=0.2)
        self.decoder = nn.Linear(32, tokens)

    def forward(self, input, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(input)), hidden)
        decoded = self.decoder(self.drop(output)).view(-1, tokens)
        return nn.functional.log_softmax(decoded, dim=1), hidden


def repackage_hidden(h):
    return h.detach() if isinstance(h, torch.Tensor) else tuple(repackage_hidden(v) for v in h)


source = torch.randint(0, tokens, (30,)).repeat(60)[: 6 * 150].view(batch, -1).t().contiguous()
model = RNNModel()
criterion = nn.NLLLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
hidden = (torch.zeros(2, batch, 32), torch.zeros(2, batch, 32))
model.train()
for start in range(0, source.size(0) - 1 - bptt, bptt):
    data, targets = source[start : start + bptt], source[start + 1 : start + 1 + bptt].reshape(-1)
    model.zero_grad()
    hidden = repackage_hidden(hidden)
    output, hidden = model(data, hidden)
    loss = criterion(output, targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    print(start, loss.item())
print("weights", sum(each.double().sum().item() for each in model.parameters()))
