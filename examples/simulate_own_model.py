"""A model of your own on sixteen replicas that know only their neighbours on a ring; seconds on a laptop."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import gossamer

torch.manual_seed(0)
torch.set_num_threads(1)  # operations this small would wait for each other on more
digits = load_digits()
inputs, targets = torch.from_numpy(digits.data).float() / 16, torch.from_numpy(digits.target)
train, test = torch.randperm(len(targets)).split([1600, len(targets) - 1600])
shards = train.view(16, 100)  # each replica has a hundred digits of its own

model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))
engine = gossamer.simulate(
    model,
    num_replicas=16,
    topology="ring",
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    loss=F.cross_entropy,
)
for step in range(200):
    batch = shards[:, torch.randint(100, (20,))]  # [16, 20]
    losses = engine.step(inputs[batch], targets[batch])
    if step % 50 == 49:
        right = (engine.averaged_outputs(inputs[test]).argmax(-1) == targets[test]).float().mean()
        apart = gossamer.metrics.consensus_distance(engine.flats()[0])
        print(f"step {step + 1}: loss {losses.mean():.3f}, averaged model {right:.1%}, replicas {apart:.1e} apart")
