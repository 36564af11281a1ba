"""Promises of scripts: a program runs until its first step, which is traced instead of run."""

import textwrap

import pytest

pytest.importorskip("torch")

from wattloop.core.errors import ConfigError
from wattloop.predict.sources.script import script_workload

PROGRAM = """
    import argparse, os, sys
    from pathlib import Path
    import torch
    from torch import nn
    from torch.nn import functional
    from torch.utils.data import DataLoader, TensorDataset

    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=8)
    size = parser.parse_args().size
    assert torch.cuda.is_available()
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)).cuda()
    before = model[0].weight.clone()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    data = TensorDataset(torch.randn(256, 32), torch.randint(10, (256,)))
    model.eval()
    with torch.no_grad():
        print("loss", float(model(torch.randn(4, 32, device="cuda")).mean()))
    model.train()
    for number, (x, y) in enumerate(DataLoader(data, size, shuffle=True, num_workers=2)):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = functional.cross_entropy(model(x.cuda()), y.cuda())
        loss /= 2
        loss.backward()
        if number % 2:
            Path("weights").write_text(str(torch.equal(model[0].weight, before)))
            optimizer.step()
            Path("trained").touch()
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text):
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


def test_the_first_step_of_a_program_is_traced(program, tmp_path):
    """Arguments, precision, accumulation and optimizer are the program's; nothing is trained."""
    workload = script_workload(program(PROGRAM), ["--size", "16"], gpu="a100")
    assert (workload.name, workload.batch, workload.accumulate) == ("train.py", 16, 2)
    assert (workload.precision, workload.optimizer_style) == ("bf16", "fused")
    assert workload.parameters == 32 * 64 + 64 + 64 * 10 + 10
    assert any("nothing was trained" in note for note in workload.notes)
    assert (tmp_path / "weights").exists()
    assert not (tmp_path / "trained").exists()


def test_a_program_for_torchrun_and_one_without_an_optimizer(program):
    """Variables of torchrun are set for one process; steps by hand end at the next call."""
    workload = script_workload(
        program(
            """
            import os
            import torch
            from torch import nn

            torch.distributed.init_process_group("nccl")
            rank = int(os.environ["LOCAL_RANK"])
            model = nn.parallel.DistributedDataParallel(nn.Linear(32, 10).cuda(rank), [rank])
            while True:
                model(torch.randn(8, 32, device=rank)).sum().backward()
                with torch.no_grad():
                    for each in model.parameters():
                        each -= 0.1 * each.grad
                model.zero_grad()
            """
        )
    )
    assert (workload.batch, workload.optimizer) == (8, "by-hand")
    updates = [each.op for each in workload.operations if each.phase.value == "optimizer"]
    assert "aten.sub_" in updates
    assert any("expects torchrun" in note for note in workload.notes)


def test_an_optimizer_may_ask_its_groups_before_it_steps(program):
    """Schedule-free optimizers keep their mode in the first group."""
    workload = script_workload(
        program(
            """
            import torch

            class Moded(torch.optim.Optimizer):
                def __init__(self, params):
                    super().__init__(params, {"lr": 0.1, "train_mode": True})

                @torch.no_grad()
                def step(self, closure=None):
                    assert self.param_groups[0]["train_mode"]
                    for group in self.param_groups:
                        for each in group["params"]:
                            each.sub_(each.grad, alpha=group["lr"])

            model = torch.nn.Linear(32, 10)
            optimizer = Moded(model.parameters())
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.randn(8, 32)).sum().backward()
                optimizer.step()
            """
        )
    )
    assert (workload.batch, workload.optimizer) == (8, "moded")
    updates = [each.op for each in workload.operations if each.phase.value == "optimizer"]
    assert updates.count("aten.sub_") == 2


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        (PROGRAM, ["--sice", "3"], "did not accept its arguments.*unrecognized arguments: --sice"),
        ("print('hello')", [], "ended without making an optimizer; it printed last: hello"),
        ("import not_there_at_all", [], "needs not_there_at_all, which is not installed"),
        ("x = {}\nx['weights']", [], r"failed before a training step at train.py:2: KeyError"),
    ],
)
def test_programs_that_never_step(program, text, arguments, said):
    with pytest.raises(ConfigError, match=said):
        script_workload(program(text), arguments)


def test_a_program_that_takes_too_long_is_stopped(program):
    with pytest.raises(
        ConfigError, match=r"no training step within 0\.5 s; allow more with --limit"
    ):
        script_workload(program("import time; time.sleep(600)"), limit_s=0.5)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("missing.py", "missing.py: no such file"),
        ("torchrun --nproc-per-node 8 train.py", "torchrun is not needed"),
        ("train.py --epochs 3", "arguments of the program come after --"),
        (".", "is a folder"),
    ],
)
def test_names_that_are_not_programs(script, said, program):
    program("pass")
    with pytest.raises(ConfigError, match=said):
        script_workload(script)
