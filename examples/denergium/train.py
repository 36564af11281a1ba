"""Train a small DistilBERT on generated news under the parameters of Denergium's study.

    python examples/denergium/train.py --train_batch_size 32 --precision fp32

Prints the metrics of every epoch as `name=value`. Needs PyTorch and transformers; nothing is
downloaded, so the model begins from random weights and is small.
"""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from news import KINDS, LENGTH, VOCABULARY, news

if TYPE_CHECKING:
    import torch


def main(words: list[str] | None = None) -> int:
    args = arguments().parse_args(words)
    try:
        import torch
        import transformers
    except ImportError as error:
        print(f"{error}; run 'pip install torch transformers'", file=sys.stderr)
        return 1
    torch.manual_seed(args.seed)
    if not torch.cuda.is_available():
        torch.set_num_threads(args.threads)
    model = transformers.DistilBertForSequenceClassification(config(args, transformers))
    train_for(args, model.to("cuda" if torch.cuda.is_available() else "cpu"))
    return 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--train_batch_size", type=int, default=32)
    add("--eval_batch_size", type=int, default=32)
    add("--precision", choices=("fp32", "fp16"), default="fp32")
    add("--workers", type=int, default=0, help="processes that load data")
    add("--tpu_cores", type=int, default=0, help="changes nothing without a TPU")
    add("--gradient_accumulation_steps", type=int, default=1)
    add("--lr", type=float, default=1e-3, help="the study fine-tunes, with 5e-5")
    add("--epochs", type=int, default=5)
    add("--pieces", type=int, default=4000, help="for training; a tenth as many to evaluate")
    add("--layers", type=int, default=2)
    add("--width", type=int, default=64)
    add("--seed", type=int, default=0)
    add("--virtual_step", type=float, default=0.04, help="s of a step on a virtual GPU")
    add("--threads", type=int, default=1, help="of the CPU, without a GPU")
    return parser


def config(args: argparse.Namespace, transformers: Any) -> Any:
    return transformers.DistilBertConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=LENGTH,
        n_layers=args.layers,
        n_heads=4,
        dim=args.width,
        hidden_dim=4 * args.width,
        num_labels=len(KINDS),
        pad_token_id=0,
    )


def train_for(args: argparse.Namespace, model: "torch.nn.Module") -> None:
    """Train every epoch, with a line each."""
    import torch

    device = next(model.parameters()).device
    train = loader(args, args.pieces, args.train_batch_size, seed=args.seed, shuffle=True)
    held_out = loader(args, args.pieces // 10, args.eval_batch_size, seed=-1, shuffle=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
    scaler = torch.amp.GradScaler(device.type, enabled=args.precision == "fp16")
    every = args.gradient_accumulation_steps
    for epoch in range(1, args.epochs + 1):
        model.train()
        for index, (words, labels) in enumerate(train, start=1):
            with virtual_step(args):
                with precision(args, device):
                    loss = model(input_ids=words.to(device), labels=labels.to(device)).loss
                scaler.scale(loss / every).backward()
                if index % every == 0 or index == len(train):
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
        eval_loss, accuracy = evaluated(args, model, held_out)
        print(f"epoch={epoch} loss={loss.item():.5f} eval_loss={eval_loss:.5f} "
              f"accuracy={accuracy:.4f}", flush=True)  # fmt: skip


@contextlib.contextmanager
def virtual_step(args: argparse.Namespace) -> Iterator[None]:
    """Let the virtual GPU do the step as well, where there is one: caps and clocks slow it down.

    The card is busy for `--virtual_step` seconds at its highest clock, longer under a cap, or for
    as long as this machine's processor takes, if that is longer.
    """
    if not os.environ.get("WATTLOOP_VIRTUAL_GPUS"):
        yield
        return
    from wattloop.virtual.gpu import IDLE, Activity
    from wattloop.virtual.node import shared_gpus
    from wattloop.virtual.timeline import this_process

    work = Activity(compute=0.8, memory=1.0, busy=1.0)  # between a GEMM and a stream of memory
    (gpu,) = shared_gpus(1)
    end_s = time.monotonic() + args.virtual_step * gpu.settled(work).slowdown
    gpu.occupy(work, owner=this_process())
    try:
        yield
        time.sleep(max(0.0, end_s - time.monotonic()))
    finally:
        gpu.occupy(IDLE)


def evaluated(
    args: argparse.Namespace, model: "torch.nn.Module", held_out: Any
) -> tuple[float, float]:
    """Return loss and accuracy on held-out pieces."""
    import torch

    device = next(model.parameters()).device
    model.eval()
    losses, right, count = 0.0, 0, 0
    with torch.no_grad(), precision(args, device):
        for words, labels in held_out:
            found = model(input_ids=words.to(device), labels=labels.to(device))
            losses += found.loss.item() * len(labels)
            right += (found.logits.argmax(1).cpu() == labels).sum().item()
            count += len(labels)
    return losses / count, right / count


def precision(args: argparse.Namespace, device: "torch.device") -> Any:
    """Return a context of float16 arithmetic on request; weights stay in float32."""
    import torch

    if args.precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=torch.float16)


def loader(args: argparse.Namespace, count: int, batch: int, *, seed: int, shuffle: bool) -> Any:
    import torch

    words, labels = (torch.tensor(part) for part in news(count, seed))
    return torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(words, labels),
        batch_size=batch,
        shuffle=shuffle,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
    )


if __name__ == "__main__":
    sys.exit(main())
