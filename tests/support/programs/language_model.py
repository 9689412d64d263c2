"""A GPT that returns its own loss, in the shape of nanoGPT: global settings, accumulation, clipping, own schedule."""

import sys
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F

batch_size, block_size, vocab_size, width = 8, 32, 64, 48
gradient_accumulation_steps, learning_rate, warmup_iters, max_iters = 2, 1e-3, 10, 16
torch.manual_seed(1337)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (
            part.view(B, T, 4, C // 4).transpose(1, 2) for part in self.c_attn(self.ln_1(x)).split(C, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))
        return x + self.out(F.gelu(self.fc(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, width), nn.Embedding(block_size, width)
        self.h = nn.ModuleList(Block() for _ in range(3))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, mean=0.0, std=0.02)

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss


data = torch.randint(0, vocab_size, (200,)).repeat(50)


def get_batch():
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in ix])
    return x, y


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = [model(*get_batch())[1].item() for _ in range(2)]
    model.train()
    return sum(losses) / len(losses)


model = GPT()
decayed = [p for p in model.parameters() if p.dim() >= 2]
others = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))
scaler = torch.amp.GradScaler("cpu", enabled=False)
is_mixed = "--bfloat16" in sys.argv
context = torch.amp.autocast("cpu", dtype=torch.bfloat16) if is_mixed else nullcontext()

X, Y = get_batch()
for iteration in range(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * min(1.0, iteration / warmup_iters)
    if iteration % 5 == 0:
        print("val", iteration, estimate_loss())
    for _ in range(gradient_accumulation_steps):
        with context:
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        X, Y = get_batch()
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    print("iter", iteration, loss.item())
print("weights", sum(each.double().sum().item() for each in model.parameters()))
