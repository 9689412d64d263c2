"""A small student learns from a few labels and from the scores of a teacher on many images."""

import argparse

import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))

    def forward(self, x):
        return self.body(x)


def distillation(student_logits, teacher_logits, bug, temperature=2.0):
    teacher = F.softmax(teacher_logits / temperature, dim=1)
    if bug == "teacher_twice":
        student = F.log_softmax(teacher_logits / temperature, dim=1)
    elif bug == "softmax_into_kl":
        student = F.softmax(student_logits / temperature, dim=1)
    else:
        student = F.log_softmax(student_logits / temperature, dim=1)
    return F.kl_div(student, teacher, reduction="batchmean") * temperature**2


def main(bug, seed):
    torch.manual_seed(seed)
    raw = load_digits()
    images, labels = torch.tensor(raw.data / 16.0, dtype=torch.float32), torch.tensor(raw.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(5))
    images, labels = images[order], labels[order]
    teacher = LogisticRegression(C=5.0, max_iter=300).fit(images[:1400].numpy(), labels[:1400].numpy())
    scores = torch.tensor(teacher.decision_function(images.numpy()), dtype=torch.float32)
    # The teacher's scores of the whole training set are computed once, batch by batch, in the order of the set.
    stored = scores[:1400].split(70)
    data = TensorDataset(images[:1400], labels[:1400], torch.arange(1400))
    loader = DataLoader(data, batch_size=70, shuffle=True)
    student = Student()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(8):
        for number, (x, y, index) in enumerate(loader):
            logits = student(x)
            teacher_logits = stored[number] if bug == "order_of_teacher" else scores[index]
            loss = distillation(logits, teacher_logits, bug)
            known = index < 30
            if known.any():
                loss = loss + 0.3 * F.cross_entropy(logits[known], y[known])
            if not loss.requires_grad:
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    with torch.no_grad():
        accuracy = (student(images[1400:]).argmax(1) == labels[1400:]).float().mean().item()
    print(f"metric {accuracy:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--bug", default="")
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
