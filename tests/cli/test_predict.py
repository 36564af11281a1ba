"""Promises of `wattloop predict`: one command, an answer with its scope and how sure it is."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import SRC, Machine
from tests.predict.small import small_workload
from wattloop.cli.main import main
from wattloop.predict.workload.files import save_workload

MODELS = """
from torch import nn

def mlp():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

def broken():
    raise ValueError("the vocabulary is missing")

class Looks(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
    def forward(self, x):
        return self.linear(x[x.sum(0) > 0])

def looks(): return Looks()

def misfit():
    return nn.Sequential(nn.Linear(64, 256), nn.Linear(100, 10))
"""


@pytest.fixture
def files(here: Machine) -> Path:
    """A saved workload and a file of models in the working directory."""
    save_workload(small_workload(), here.folder / "small.json")
    save_workload(small_workload(peak_bytes=300e9), here.folder / "large.json")
    save_workload(replace(small_workload(), precision="fp9"), here.folder / "odd.json")
    (here.folder / "models.py").write_text(MODELS)
    return here.folder


def predicted(*words: str) -> Any:
    assert main(["predict", *words, "--json", "answer.json"]) == 0
    return json.loads(Path("answer.json").read_text())


def test_a_prediction_says_what_it_is_of_and_who_says_so(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every number has its scope, its interval or a dash, and its provenance."""
    assert main(["predict", "--model", "small.json", "--gpu", "h200"]) == 0
    out, _ = capsys.readouterr()
    assert out.startswith("small, batch 32, bf16, adamw, on 1 x NVIDIA H200: predicted by kernels")
    for line in ("training step", "throughput", "power per GPU", "GPU energy per step", "memory"):
        assert f"\n{line}" in out
    assert "90% interval" in out
    assert "fits into 139 GiB" in out
    assert "layers.*.linear aten.mm" in out
    assert "-bound: the GPU computes" in out


def test_json_on_standard_output_is_all_there_is(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program can read the answer from a pipe."""
    assert main(["predict", "--model", "small.json", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["model"] == "small"
    assert data["fits"] is True
    assert data["step_s"] > 0


def test_gpus_are_compared_and_the_best_is_named(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One row per GPU, in the order asked for."""
    data = predicted("--model", "small.json", "--compare", "a100,h100,h200")
    assert [p["gpu"] for p in data["points"]] == ["a100-sxm-80", "h100-sxm", "h200"]
    assert [p["setting"] for p in data["points"]] == [{"gpu": g} for g in ("a100", "h100", "h200")]
    out, err = capsys.readouterr()
    assert "least energy per sample: gpu=" in out
    assert "'a100' is taken as a100-sxm-80" in err


def test_sweeps_combine_and_are_drawn(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Caps times GPU counts, as a table and a figure of one definition."""
    pytest.importorskip("vl_convert", reason="the extra 'figures' is not installed")
    words = ("--sweep", "cap=300,700", "--sweep", "gpus=1..4", "--plot", "caps.svg")
    data = predicted("--model", "small.json", *words)
    settings = [tuple(p["setting"].values()) for p in data["points"]]
    assert settings == [(c, g) for c in (300, 700) for g in (1, 2, 4)]
    assert [p["cap_w"] for p in data["points"]] == [300] * 3 + [700] * 3
    assert "Power cap (W)" in Path("caps.svg").read_text()
    assert "300 W" in capsys.readouterr().out


def test_money_of_gpu_hours_and_electricity(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: hours of all GPUs at their price, electricity apart, and the cheapest is named."""
    words = ("--steps", "1000000", "--price", "a100=2,h200=4 USD", "--tariff", "0.20")
    data = predicted("--model", "small.json", "--compare", "a100,h200,l40", *words, "--gpus", "2")
    out = capsys.readouterr().out
    assert "run cost (USD)" in out and "least money: gpu=" in out
    for point, price in zip(data["points"], (2.0, 4.0, None), strict=True):
        run = point["run"]
        hours = 2 * run["time_s"]["value"] / 3_600
        cost = run["gpu_cost"] and run["gpu_cost"]["value"]
        assert cost == (None if price is None else pytest.approx(price * hours))
        assert run["cost"]["value"] == pytest.approx(0.20 * run["facility_j"]["value"] / 3.6e6)
    cheapest = min(data["points"][:2], key=lambda p: p["run"]["gpu_cost"]["value"])
    assert data["best"]["least money"] == cheapest["setting"]
    predicted("--model", "small.json", *words[:2], "--price", "2.50", "--tariff", "0.2")
    out = capsys.readouterr().out
    assert "hours of the GPUs" in out and "cost, both" in out
    assert main(["predict", "--model", "small.json", "--price", "2"]) == 0
    assert "--price: cost and carbon are of a run" in capsys.readouterr().err


def test_gpus_of_several_nodes_talk_over_their_network(files: Path) -> None:
    """A slower network makes a longer step, and one node does not use it."""
    over = [
        predicted("--model", "small.json", "--gpus", gpus, "--network", gbit)["step_s"]
        for gpus, gbit in (("8", "10"), ("8", "400"), ("16", "400"), ("16", "10"))
    ]
    assert over[0] == over[1]
    assert over[2] < over[3]


def test_what_does_not_fit_is_a_warning(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A batch beyond memory is predicted, and it says by how much it is too large."""
    data = predicted("--model", "large.json")
    assert data["fits"] is False
    assert data["short_bytes"] > 100e9
    out, err = capsys.readouterr()
    assert "does not fit into 139 GiB" in out
    assert "GiB too much; about" in err
    assert main(["predict", "--model", "large.json", "--sweep", "gpus=1,2"]) == 0
    assert "none of them fits into memory" in capsys.readouterr().out


def test_a_model_is_traced_kept_and_predicted_without_torch(
    files: Path, here: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stored trace answers the same where torch cannot be imported."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    traced = predicted("--model", "models.py:mlp", "--save-workload", "mlp.json")
    err = capsys.readouterr().err
    assert "note: input: input = float32[8, 64], guessed from Linear of 64" in err
    assert "note: loss: cross entropy over classes of the 8x10 output, guessed" in err
    assert traced["parameters"] == 64 * 256 + 256 + 256 * 10 + 10
    blocked = (
        "import sys\n"
        "for name in ('torch', 'transformers'): sys.modules[name] = None\n"
        "from wattloop.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )

    def without_torch(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", blocked, "predict", *words],
            env={**os.environ, "PYTHONPATH": str(SRC)},
            cwd=files,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    done = without_torch("--model", "mlp.json", "--json", "-")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["step_s"] == traced["step_s"]
    refused = without_torch("--model", "models.py:mlp")
    assert refused.returncode == 2
    assert "pip install 'wattloop[torch]'" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "pip install 'wattloop[hf]'" in without_torch("--model", "hf:gpt2").stderr


def test_a_second_question_about_a_known_model_loads_no_torch(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The trace of `hf:NAME` is in the user's cache, under all its determinants."""
    pytest.importorskip("transformers", reason="Transformers is not installed")
    config = {"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 100}
    Path("config.json").write_text(json.dumps(config))
    words = ("--model", "hf:config.json", "--seq", "16", "--gpu")
    first = predicted(*words, "h200")
    assert len(list(Path(".cache/wattloop/workloads").iterdir())) == 1
    code = (
        "import sys\nfrom wattloop.cli.main import main\ncode = main(sys.argv[1:])\n"
        "sys.exit(code or ('torch' in sys.modules and 3))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "predict", *words, "h200", "--json", "-"],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    again = json.loads(done.stdout)
    assert again["step_s"] == first["step_s"]
    assert "head: causal-lm" in again["notes"]
    Path("config.json").write_text(json.dumps({**config, "n_layer": 2}))
    assert predicted(*words, "h200")["parameters"] > first["parameters"]


def test_inspect_shows_the_workload_by_module_kind_and_phase(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FLOPs, bytes, memory and time on the GPU asked for; like layers in one row."""
    words = ["predict", "inspect", "--model", "small.json", "--gpu", "a100", "--json", "i.json"]
    assert main(words) == 0
    out, _ = capsys.readouterr()
    assert "layers.0-2" in out
    assert "time on NVIDIA A100-SXM4-80GB" in out
    assert "without a cost rule" in out
    data = json.loads(Path("i.json").read_text())
    assert set(data["by_phase"]) == {"forward", "backward", "optimizer"}
    assert data["by_kind"]["gemm"]["flops"] == 9 * 2.0 * 4096 * 1024 * 1024
    assert data["parameters"] == 3 * 1024 * 1024


def test_lists_name_what_can_be_asked_for(
    here: Machine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`predict models` and `predict gpus` show the tables; peaks are of what --precision takes."""
    monkeypatch.setenv("COLUMNS", "200")  # wide enough for every column
    assert main(["predict", "models"]) == 0
    assert "hf:gpt2 " in capsys.readouterr().out
    assert main(["predict", "gpus"]) == 0
    out = capsys.readouterr().out
    assert "h200" in out
    assert "spec-only" in out
    shown = next(line for line in out.splitlines() if line.startswith("h100-sxm"))
    assert " 989 " in shown  # bf16; fp8 would be 1979


def test_a_whole_run_of_a_whole_node_is_predicted(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps, the node, tariff and zone give time, energy, cost and carbon, with their scope."""
    words = ("--epochs", "2", "--samples", "6400", "--node", "--tariff", "0.2", "--zone", "FRA")
    data = predicted("--model", "small.json", *words)
    assert data["run"]["steps"] == 400
    assert data["run"]["scope"] == "node"
    out, err = capsys.readouterr()
    for text in ("A run of 400 steps", "node energy", "node power", "cost ", "carbon "):
        assert text in out
    assert "note: carbon intensity: annual mean of France" in err
    table = ["predict", "--model", "small.json", "--sweep", "gpus=1,2", *words]
    assert main(table) == 0
    out = capsys.readouterr().out
    assert "run energy (node)" in out
    assert "least energy of the run: gpus=" in out


def test_prices_without_a_run_are_not_dropped_in_silence(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tariff without a run length is reported: the message names what a cost needs."""
    predicted("--model", "small.json", "--tariff", "0.2", "--zone", "FRA")
    assert "note: --zone, --tariff: cost and carbon are of a run; give --steps" in (
        capsys.readouterr().err
    )
    predicted("--model", "small.json", "--tariff", "0.2", "--steps", "1")
    out, err = capsys.readouterr()
    assert "A run of 1 step\n" in out
    assert "are of a run" not in err


SMALL = ("--model", "small.json")
BAD = [
    (("--model", "nothing"), "--model nothing: not understood; write hf:NAME"),
    (("--model", "gpt2"), "--model gpt2: write it as hf:gpt2"),
    (("--model", "none.json"), "--model none.json: no such file"),
    ((*SMALL, "--gpu", "h300"), "--gpu h300: no GPU called 'h300'"),
    ((*SMALL, "--gpu", "rtx9999"), "describe another in a YAML file and give its path"),
    ((*SMALL, "--precision", "int4"), "--precision int4: unknown; choose one of fp32"),
    ((*SMALL, "--optimizer", "lion"), "--optimizer lion: unknown; choose one of"),
    ((*SMALL, "--compile", "--batch", "1"), "--compile: give its mode as well"),
    ((*SMALL, "--compile", "fast"), "--compile fast: choose one of none, default, reduce-overhead"),
    (
        (*SMALL, "--compile", "default"),
        "--compile default: small.json was traced with compile none",
    ),
    ((*SMALL, "--batch", "0"), "--batch 0: must be"),
    ((*SMALL, "--cap", "900"), "--cap 900: the NVIDIA H200 can be set to 200 to 700 W"),
    ((*SMALL, "--clock", "5000"), "--clock 5000: the NVIDIA H200 runs at up to 1980 MHz"),
    ((*SMALL, "--gpus", "16"), "--gpus 16: more than the 8 of a node, so say what joins"),
    ((*SMALL, "--network", "0"), "--network 0 Gbit/s: must be above 0"),
    ((*SMALL, "--sweep", "batch=x"), "--sweep batch=x: x is not a whole number"),
    ((*SMALL, "--sweep", "gpus=1,2", "--sweep", "gpus=4"), "--sweep gpus: varied twice"),
    ((*SMALL, "--sweep", "cap=100..300"), "--sweep cap=100: the NVIDIA H200 can be set to 200"),
    ((*SMALL, "--sweep", "gpus=8,16"), "--sweep gpus=16: more than the 8 of a node"),
    ((*SMALL, "--compare", "a100,foo"), "--compare foo: no GPU called 'foo'"),
    ((*SMALL, "--compare", "h200,a100", "--cap", "600"), "--cap 600: the NVIDIA A100"),
    ((*SMALL, "--compare", "a100,,h200"), "--compare a100,,h200: name each GPU once"),
    ((*SMALL, "--price", "cheap"), "--price cheap: must be a number, not 'cheap'; use a price per"),
    ((*SMALL, "--steps", "9", "--epochs", "1"), "--steps 9: give the number of steps, or epochs"),
    ((*SMALL, "--epochs", "1"), "--epochs 1: give samples as well"),
    ((*SMALL, "--epochs", "1e300", "--samples", "9"), "--epochs 1e+15 or more: no run is that"),
    ((*SMALL, "--steps", f"1{400 * '0'}"), "--steps 1e+15 or more: no run is that long"),
    ((*SMALL, "--plot", "x.svg"), "--plot x.svg: there is one point; add --sweep or --compare"),
    ((*SMALL, "--sweep", "gpus=1,2", "--plot", "x.gif"), "--plot x.gif: end it with .svg"),
    ((*SMALL, "--style", "loop"), "--style loop: small.json was traced with style fused"),
    ((*SMALL, "--input", "float32[B,3]"), "--input: small.json is traced already"),
    (("--model", "odd.json"), "--model odd.json: field 'precision' is 'fp9', none of fp32"),
    (("--model", ""), "--model : not understood"),
    ((*SMALL, "--compare", ""), "--compare : name each GPU once"),
    ((*SMALL, "--calibration", "c.json"), "--calibration c.json: no such file"),
    ((*SMALL, "--estimator", "guess"), "--estimator guess: unknown"),
    ((*SMALL, "--json", "no/such/x.json"), "--json no/such/x.json: no folder"),
    (("--model", "models.py:nosuch"), "--model models.py:nosuch: no nosuch in it"),
    (("--model", "models.py:broken"), "failed with ValueError: the vocabulary is missing"),
    (("--model", "models.py:misfit"), "--model models.py:misfit: the model does not run on these"),
]


@pytest.mark.parametrize(("words", "said"), BAD, ids=lambda value: str(value)[:60])
def test_bad_input_names_the_option_and_the_remedy(
    files: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    """Exit code 2, one message, no traceback."""
    if "models.py" in words[1]:
        pytest.importorskip("torch", reason="PyTorch is not installed")
    assert main(["predict", *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.startswith("wattloop: ")
    assert "Traceback" not in err


def test_serving_is_shown_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Promise: JSON has what the terminal shows."""
    file = tmp_path / "serve.json"
    asked = ["predict", "serve", "--model", "hf:qwen3-8b", "--gpu", "h100", "--concurrency", "16"]
    assert main(asked) == 0
    out, err = capsys.readouterr()
    assert "time to first token" in out
    assert "least energy per token" in err
    assert main([*asked, "--json", str(file)]) == 0
    data = json.loads(file.read_text())
    assert data["token_j"] == pytest.approx(data["power_w"] / data["tokens_s"])
    assert data["best_cap"]["token_j"] <= data["token_j"]


def test_serving_that_does_not_fit_names_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "serve", "--model", "hf:llama-3.1-70b", "--gpu", "h100"]) != 0
    assert "use --tp 2, or --weights int4" in capsys.readouterr().err


def test_a_layout_of_many_gpus_shows_time_energy_and_memory(
    capsys: pytest.CaptureFixture[str], files: Path
) -> None:
    """One layout in words, and the same as JSON."""
    asked = ["predict", "--model", "hf:llama-3.1-8b", "--gpu", "h100-sxm", "--seq", "4096"]
    assert main([*asked, "--parallel", "tp=2,pp=2,dp=2,zero=1,sp", "--accumulate", "8"]) == 0
    shown = capsys.readouterr().out
    for part in ("pipeline bubble", "tensor parallel exchange", "optimizer", "activations"):
        assert part in shown
    assert main([*asked, "--parallel", "fsdp=8", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["layout"] == "fsdp=8" and data["gpus"] == 8
    assert main([*asked, "--parallel", "tp=3"]) == 2
    assert "--parallel tp=3: does not divide the 32 heads" in capsys.readouterr().err


def test_any_model_is_sharded_by_its_trace(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    assert main(["predict", "--model", "small.json", "--parallel", "fsdp=8", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["gpus"] == 8
    assert main(["predict", "--model", "small.json", "--parallel", "tp=2"]) == 2
    assert "takes dp=8, dp=8,zero=1 or fsdp=8" in capsys.readouterr().err


def test_a_plan_answers_whether_it_fits(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    """The answer, the layouts, and links of a cluster file."""
    asked = ["predict", "plan", "--model", "hf:llama-3.1-8b", "--gpus", "8", "--seq", "4096"]
    assert main([*asked, "--gpu", "h100-sxm", "--tokens", "1e12", "--cluster", "thesis"]) == 0
    shown = capsys.readouterr()
    assert "fits" in shown.out and "fsdp=8" in shown.out
    assert "1e+12 tokens" in shown.err
    assert main([*asked, "--gpu", "h200", "--cluster", "thesis"]) == 2
    assert "has no h200; it has a100-sxm-40, h100-sxm" in capsys.readouterr().err


def test_requests_that_arrive_give_those_that_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Little's law on the terminal; a rate beyond the server names the most that it answers."""
    asked = ["predict", "serve", "--model", "hf:qwen3-8b", "--gpu", "h100-sxm"]
    assert main([*asked, "--requests-per-s", "2"]) == 0
    out, err = capsys.readouterr()
    (running,) = re.findall(r"2 requests/s: ([\d.]+) at the same time in the mean", err)
    assert f": {round(float(running))} requests of 512 + 512 tokens" in out
    for rate, said in (("900", "answer at most"), ("-1", "--requests-per-s -1: must be above 0")):
        assert main([*asked, "--requests-per-s", rate]) == 2
        assert said in capsys.readouterr().err
