"""Pictures in classes, on one worker or many: an ordinary training script and two lines of Gossamer.

By default scikit-learn's digits, which need no download: seconds. With --data, ResNet20 on CIFAR-10: for GPUs.
"""

import argparse
import os
from importlib.util import find_spec
from math import cos, pi
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import gossamer  # the first line
from gossamer.engines import Decentralized
from gossamer.tasks import TASKS, Dataset, Task

EXAMPLES = """examples:
  python examples/image_classifier.py                                     # one worker, by itself
  torchrun --nproc-per-node 4 examples/image_classifier.py                # four on this machine
  torchrun --nproc-per-node 4 examples/image_classifier.py --topology ring --checkpoints DIR
  torchrun --nproc-per-node 4 examples/image_classifier.py --topology ring --checkpoints DIR --resume
  srun --nodes 2 --ntasks-per-node 4 python examples/image_classifier.py --data DIR --epochs 60
"""


def main() -> None:
    args = parse()
    task = TASKS["resnet20" if args.data else "digits"]
    data = task.load(args.data)
    device = pick_device()
    torch.manual_seed(args.seed)
    model = task.model().to(device, torch.float32)
    optimizer = SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)

    with gossamer.decentralize(model, optimizer, topology=args.topology) as handle:  # the second line
        report_to_tensorboard(handle, args.tensorboard)
        torch.manual_seed(args.seed + handle.rank)  # from here on each worker draws random numbers of its own
        # Each worker has pictures of its own; equally many, so that the learning rate falls alike on all.
        pictures = TensorDataset(data.train_inputs, data.train_targets)
        sampler = DistributedSampler(pictures, handle.size, handle.rank, seed=args.seed, drop_last=True)
        loader = DataLoader(pictures, args.batch_size, sampler=sampler, drop_last=True)
        num_steps = args.epochs * len(loader)

        first_epoch = resume(handle, args.checkpoints) if args.resume else 0
        scheduler = LambdaLR(  # made after resuming: it goes on at the step that was reached
            optimizer, lambda step: warm_up_then_cosine(step, num_steps), last_epoch=handle.num_steps - 1
        )
        for epoch in range(first_epoch, args.epochs):
            sampler.set_epoch(epoch)
            for images, labels in loader:
                draws = torch.rand(len(images), task.num_draws, device=device)  # augment CIFAR-10; digits take none
                loss = F.cross_entropy(model(task.prepare(images.to(device), draws).float()), labels.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
            with handle.averaged():
                accuracy, _ = evaluate(task, data, model)
            if handle.rank == 0:
                print(f"epoch {epoch + 1}: loss {loss:.3f}, averaged model {accuracy:.1%}", flush=True)
            if args.checkpoints:
                handle.save(args.checkpoints / f"epoch-{epoch + 1}")

        with handle.averaged():
            accuracy, test_loss = evaluate(task, data, model)
            if handle.rank == 0 and args.checkpoints:
                torch.save(model.state_dict(), args.checkpoints / "averaged.pt")
        apart, figures = handle.consensus_distance(), handle.metrics()
        if handle.rank == 0:
            print(
                f"averaged model of {handle.size}: test accuracy {accuracy:.2%}, test loss {test_loss:.9g}; "
                f"replicas {apart:.1e} apart; waited {figures['waited_s']:.1f} s for neighbours; "
                f"sent {figures['bytes_sent'] / 1e6:.1f} MB"
            )


def warm_up_then_cosine(step: int, num_steps: int, warm_up: float = 0.1) -> float:
    return min((step + 1) / (warm_up * num_steps), 1.0) * (1 + cos(pi * min(step / num_steps, 1.0))) / 2


@torch.no_grad()
def evaluate(task: Task, data: Dataset, model: nn.Module) -> tuple[float, float]:
    """Accuracy and loss on all test pictures."""
    model.eval()
    device = next(model.parameters()).device
    inputs = (task.prepare(images.to(device), None).float() for images in data.test_inputs.split(500))
    outputs, labels = torch.cat([model(images).cpu() for images in inputs]), data.test_targets
    model.train()
    return (outputs.argmax(1) == labels).float().mean().item(), F.cross_entropy(outputs, labels).item()


def resume(handle: Decentralized, checkpoints: Path) -> int:
    """Go on after the last epoch that every worker has saved: a run may be stopped while some still write."""
    own = checkpoints.glob(f"epoch-*/rank-{handle.rank}-of-{handle.size}.pt")
    last = max((int(file.parent.name.removeprefix("epoch-")) for file in own), default=0)
    last = int(handle.gather(torch.tensor([[last]])).min())
    if last:
        handle.load(checkpoints / f"epoch-{last}")
    if handle.rank == 0:
        print(f"going on after epoch {last}" if last else f"nothing to go on from in {checkpoints}: from the start")
    return last


def report_to_tensorboard(handle: Decentralized, folder: Path | None) -> None:
    if folder is not None:
        from torch.utils.tensorboard import SummaryWriter

        handle.report_to(SummaryWriter(folder) if handle.rank == 0 else None, every=20)  # all call it, one writes


def pick_device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local_rank = int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")))
    return torch.device("cuda", local_rank % torch.cuda.device_count())


def parse() -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES, formatter_class=formatter)
    parser.add_argument("--data", type=Path, metavar="DIR", help="the folder with cifar-10-batches-py/")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=16, help="of one worker and step (16)")
    parser.add_argument("--lr", type=float, default=0.1, help="the peak, reached after a tenth of the steps (0.1)")
    parser.add_argument("--topology", default="alternating-exponential-ring", help="see `gossamer graphs`")
    parser.add_argument("--checkpoints", type=Path, metavar="DIR", help="save here after every epoch")
    parser.add_argument("--resume", action="store_true", help="go on from the last of the --checkpoints")
    parser.add_argument("--tensorboard", type=Path, metavar="DIR", help="write consensus distance and waiting here")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.resume and not args.checkpoints:
        parser.error("--resume needs --checkpoints DIR, the folder to go on from")
    if args.tensorboard and not find_spec("tensorboard"):
        parser.error("--tensorboard needs a package that is not there: pip install tensorboard")
    return args


if __name__ == "__main__":
    main()
