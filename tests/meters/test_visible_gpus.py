"""Promises of visible GPUs: a run counts the GPUs that its environment shows, and names the
others.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.amdgpu_tree import AmdgpuTree
from tests.support.nvml_stub import NoCompiler, StubNvml

from wattloop.cap.saver.gpu_levers import measured_gpus
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.hardware.host import Host
from wattloop.measure.concurrent_runs import device_key
from wattloop.measure.session import Session
from wattloop.meters.base import Context
from wattloop.meters.visible_gpus import VARIABLES

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")

UUID = "GPU-00000000-0000-0000-0000-{:012d}"
SRC = Path(__file__).parents[2] / "src"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    try:
        StubNvml(folder)
    except NoCompiler as reason:
        pytest.skip(str(reason))
    return folder


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "WATTLOOP_JOB", "WATTLOOP_RUN", "WORLD_SIZE", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def cards(folder: Path) -> Iterator[StubNvml]:
    """Four idle cards of 75 W."""
    with StubNvml(folder, gpus=4) as stub:
        yield stub


def counted(host: Host | None = None, **settings: object) -> tuple[list[str], str]:
    """Return the names of the GPUs in a run, and the text that names the others."""
    given = {"meters": ("nvidia", "amd-gpu"), "sampler": "thread", **settings}
    context = Context(host or Host(), Settings(**given))  # type: ignore[arg-type]
    run = Session.open(context=context, keep=False).close()
    return [d.name for d in run.result.domains], " ".join(run.result.warnings)


@pytest.mark.parametrize(
    ("variables", "numbers"),
    [
        ({"CUDA_VISIBLE_DEVICES": "1"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "3, 0"}, [0, 3]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, []),
        ({"CUDA_VISIBLE_DEVICES": "2,9,0"}, [2]),
        ({"CUDA_VISIBLE_DEVICES": UUID.format(2)}, [2]),
        ({"CUDA_VISIBLE_DEVICES": f"{UUID.format(2)},{UUID.format(1)}"}, [1, 2]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-0000"}, []),  # a prefix of several
        ({"CUDA_VISIBLE_DEVICES": f"MIG-{UUID.format(3)}/7/0"}, [3]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-11111111-0000-0000-0000-000000000000"}, [0, 1, 2, 3]),
        ({"SLURM_JOB_GPUS": "1-2"}, [1, 2]),
        ({"SLURM_JOB_GPUS": "0-3", "SLURM_STEP_GPUS": "2"}, [2]),
        ({"SLURM_JOB_GPUS": "1", "WATTLOOP_NVML_STUB_REVERSED": "1"}, [2]),
        ({"SLURM_JOB_GPUS": "3", "CUDA_VISIBLE_DEVICES": "0"}, [0]),
        (
            {
                "SLURM_JOB_GPUS": "0,1",
                "CUDA_VISIBLE_DEVICES": "0",
                "WORLD_SIZE": "2",
                "RANK": "0",
                "MASTER_PORT": "1",
            },
            [0, 1],
        ),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, [0, 1, 2, 3]),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, [0, 1, 2, 3]),
        ({"NVIDIA_VISIBLE_DEVICES": "none"}, []),
        ({"NVIDIA_VISIBLE_DEVICES": "2"}, [2]),
        ({"NVIDIA_VISIBLE_DEVICES": "4,5,6,7"}, [0, 1, 2, 3]),  # numbers of the host
        ({"NVIDIA_VISIBLE_DEVICES": UUID.format(1)}, [1]),
        ({"NVIDIA_VISIBLE_DEVICES": "1:0"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "0"}, [0, 1, 2, 3]),  # does not concern these cards
    ],
)
def test_the_visible_gpus_are_counted_and_the_others_named(
    cards: StubNvml, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], numbers: list[int]
) -> None:
    """Promise: a run counts the GPUs that its program can use, and names those left out."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found, warnings = counted()
    assert found == [f"gpu:{number}" for number in numbers]
    hidden = [f"gpu:{number}" for number in range(4) if number not in numbers]
    assert (", ".join(hidden) + (" is" if len(hidden) == 1 else " are")) in warnings or not hidden
    assert ("not counted" in warnings) == bool(hidden)


def test_devices_that_were_named_are_counted_whatever_the_environment_says(
    cards: StubNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: `--devices all` counts every GPU, `gpu:3` that one; `gpu` means the visible ones."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert counted(devices=("all",))[0] == ["gpu:0", "gpu:1", "gpu:2", "gpu:3"]
    assert counted(devices=("gpu:3",))[0] == ["gpu:3"]
    assert counted(devices=("gpu",))[0] == ["gpu:1"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert counted(devices=("-gpu:0", "-gpu:3"))[0] == ["gpu:1", "gpu:2"]


def test_a_run_has_the_part_of_its_instance_and_nothing_of_other_cards(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: an instance of a card split by MIG is a device like others; a program without one
    does not see that card.
    """
    with StubNvml(folder, gpus=3) as stub:
        stub.gpu(1).mig_mode, stub.gpu(1).mig_slices[0] = 1, 2
        context = Context(Host(), Settings(meters=("nvidia",), sampler="thread"))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"MIG-{UUID.format(1)[4:]}")
        session = Session.open(context=context, keep=False)
        assert device_key(session.channels[0].domain).endswith(f"/MIG-{UUID.format(1)[4:]}")
        with pytest.raises(ConfigError, match="split by MIG: a cap would slow"):
            measured_gpus(session)
        own = session.close()
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
        other = Session.open(context=context, keep=False).close()
    (energy,) = own.result.domains
    assert energy.name == "gpu:1"
    assert energy.provenance.value == "modelled"
    assert [d.name for d in other.result.domains] == ["gpu:0"]
    assert not own.result.missing and not other.result.missing


@pytest.mark.parametrize(
    ("variables", "numbers"),
    [
        ({"ROCR_VISIBLE_DEVICES": "1,2"}, [1, 2]),
        ({"HIP_VISIBLE_DEVICES": "0"}, [0]),
        ({"CUDA_VISIBLE_DEVICES": "2"}, [2]),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "2"}, [0]),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, [2]),
        ({"ROCR_VISIBLE_DEVICES": "2", "GPU_DEVICE_ORDINAL": "2"}, [2]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-00000000000000b1"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "0"}, []),
        ({"GPU_DEVICE_ORDINAL": "1"}, [1]),
        ({"SLURM_JOB_GPUS": "0"}, [0]),
    ],
)
def test_amd_cards_follow_the_variables_of_rocm(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    numbers: list[int],
) -> None:
    """Promise: HIP's numbers count among the devices that ROCr shows, as in ROCm itself."""
    tree = AmdgpuTree(tmp_path / "sys")
    for number in range(3):
        card = tree.add_card()
        card.put("power1_average", 50_000_000)
        (card.device / "unique_id").write_text(f"00000000000000b{number}\n")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found, warnings = counted(Host(sysfs=tmp_path / "sys", procfs=tmp_path / "proc"))
    assert found == [f"gpu:{number}" for number in numbers]
    assert "not counted" in warnings


def test_run_says_which_gpus_it_leaves_out(cards: StubNvml, tmp_path: Path) -> None:
    """Promise: `wattloop run` names them on standard error and in its JSON; `all` counts all."""
    environment = {
        **os.environ,
        **cards.environment,
        "PYTHONPATH": str(SRC),
        "WATTLOOP_METERS": "nvidia",
        "WATTLOOP_STORE": str(tmp_path / "runs.db"),
        "CUDA_VISIBLE_DEVICES": "0,1",
    }

    def run(*options: str) -> tuple[dict[str, object], str]:
        words = [*options, "--json", "run.json", "--", "sleep", "0.4"]
        done = subprocess.run(
            [sys.executable, "-m", "wattloop", "run", *words],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads((tmp_path / "run.json").read_text()), done.stderr

    visible, said = run()
    everything, _ = run("--devices", "all")
    assert [d["name"] for d in visible["domains"]] == ["gpu:0", "gpu:1"]
    assert [part["name"] for part in visible["left_out"]] == ["gpu:2", "gpu:3"]
    assert "gpu:2, gpu:3 are not counted: CUDA_VISIBLE_DEVICES is '0,1'" in said
    assert [d["name"] for d in everything["domains"]] == [f"gpu:{n}" for n in range(4)]
