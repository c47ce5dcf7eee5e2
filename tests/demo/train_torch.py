"""A small training run in PyTorch: what scripts/demo runs where there is a GPU. It knows nothing of curb.

Reads commands from stdin, like a notebook:  fit STEPS | memory | quit
Its precaution is the usual one: out of memory, it halves the micro-batch and accumulates gradients.
"""

import sys

import torch
from torch import nn

BATCH = 65536
WIDTH = 1024
LAYERS = 12

torch.manual_seed(0)
device = torch.device("cuda:0")
model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)], nn.Linear(WIDTH, 1))
model.to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
inputs = torch.randn(BATCH, WIDTH)
targets = inputs[:, :8].sum(dim=1, keepdim=True)


def train_step(micro_batch):
    optimizer.zero_grad(set_to_none=True)
    loss_sum = 0.0
    for first in range(0, BATCH, micro_batch):
        x = inputs[first : first + micro_batch].to(device)
        y = targets[first : first + micro_batch].to(device)
        loss = nn.functional.mse_loss(model(x), y, reduction="sum") / BATCH
        loss.backward()
        loss_sum += loss.item()
    optimizer.step()
    return loss_sum


def fit(steps):
    micro_batch, refused, loss = BATCH, 0, 0.0
    for _ in range(steps):
        while True:
            try:
                loss = train_step(micro_batch)
                break
            except torch.cuda.OutOfMemoryError:
                refused += 1
            # Outside of the handler: the exception holds the frames, and they hold the tensors.
            micro_batch //= 2
            if micro_batch == 0:
                print(f"gave up out_of_memory={refused}")
                return
    print(f"fitted steps={steps} micro_batch={micro_batch} out_of_memory={refused} loss={loss:.17g}")


# A small step first, while there is memory: later an allocation of cuBLAS's own may fail, which PyTorch takes for its own.
nn.functional.mse_loss(model(torch.zeros(1, WIDTH, device=device)), torch.zeros(1, 1, device=device)).backward()
optimizer.zero_grad(set_to_none=True)
torch.cuda.synchronize()
print("ready", flush=True)
for line in sys.stdin:
    words = line.split()
    if words[0] == "fit":
        fit(int(words[1]))
    elif words[0] == "memory":
        free, total = torch.cuda.mem_get_info()
        print(f"memory free={free} total={total}")
    else:
        break
    sys.stdout.flush()
