"""Promises of `calibrate fit`: from a collection's files to constants that predict uses."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.predict.models.kernels.made import H200, transformer_step
from wattloop.cli.main import main
from wattloop.core.errors import ConfigError
from wattloop.predict.calibrate.fit import (
    fit_adept,
    fit_files,
    once_each,
    samples_of,
    with_host,
)
from wattloop.predict.calibrate.suite import operations_of
from wattloop.predict.models.adept.model import Adept, AdeptSearch
from wattloop.predict.models.kernels import KernelModel
from wattloop.predict.models.kernels.constants import DEFAULTS, Values
from wattloop.predict.models.kernels.kernel_cost import calculated_times
from wattloop.predict.models.kernels.operation_table import OperationTable
from wattloop.predict.models.kernels.step import of_operation
from wattloop.predict.prediction import Placement

SLOW = Values(DEFAULTS).with_changes(
    {"product.efficiency": 0.3, "stream.efficiency": 0.4, "stream.l2_use": 0.0}
)
MACHINE = {"record": "machine", "gpu": "NVIDIA H200", "torch": "2.11.0", "time": "2026-11-15"}


def kernel(family: str, **params: object) -> dict[str, Any]:
    """Return a record of a GPU that reaches 0.3 of its peak and 0.4 of its bandwidth."""
    table = OperationTable.of(operations_of(family, params))
    seconds = float(calculated_times(table, SLOW, H200).seconds.sum())
    return {"record": "kernel", "family": family, "params": params, "seconds": seconds,
            "repeats": 10, "host_s": 1e-5, "error": None}  # fmt: skip


def records() -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = [MACHINE]
    for m in (256, 1024, 4096):
        for n in (512, 1536, 4096):
            rows.append(kernel("gemm", dtype="bf16", b=1, m=m, n=n, k=1024, layout="nt", bias=True))
    for elements in (2**20, 2**22, 2**24, 2**26, 2**27):
        rows.append(kernel("elementwise", dtype="fp32", elements=elements, function="add"))
    held = {"dtype": "bf16", "b": 1, "m": 4096, "n": 4096, "k": 4096, "layout": "nn", "bias": False}
    drawn = {"seconds": 3e-4, "busy_share": 0.9, "power_w": 600.0, "clock_mhz": 1980.0}
    rows.append({"record": "power", "family": "gemm", "params": held, **drawn, "error": None})
    rows.append({"record": "power", "family": "idle", "params": {}, "seconds": None,
                 "power_w": 118.0, "error": None})  # fmt: skip
    call = {"function": "linear", "mode": "forward"}
    rows.append(
        {"record": "host", "family": "call", "params": call, "seconds": 3e-5, "error": None}
    )
    rows.append({"record": "kernel", "family": "gemm", "params": {}, "error": "out of memory"})
    return rows


def written(path: Path, rows: list[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_constants_follow_what_was_measured(tmp_path: Path) -> None:
    """Efficiencies, host cost and idle power of a collection are found."""
    report = fit_files([written(tmp_path / "a.jsonl", records())])
    values = report.constants.values
    assert values.find("product.efficiency", "gemm.bf16") == pytest.approx(0.3, rel=0.2)
    assert values.find("stream.efficiency", "elementwise.add.fp32") == pytest.approx(0.4, rel=0.1)
    assert values["host.call_s.forward.gemm"] == pytest.approx(3e-5)
    assert values["power.idle_w"] + DEFAULTS["power.static_w"] == pytest.approx(118)
    assert (report.used["kernel"], report.used["power"], report.failed) == (14, 1, 1)
    assert report.constants.gpu == "h200"
    assert report.constants.made["torch"] == "2.11.0"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no record of a machine"),
        ([MACHINE, {**MACHINE, "gpu": "NVIDIA L4"}], "names NVIDIA H200, NVIDIA L4"),
        ([{**MACHINE, "gpu": "cpu"}], "collected with --gpu cpu, .* there is nothing to fit; run"),
        ([MACHINE, {"record": "kernel", "family": "gemm"}], "a.jsonl:2: field 'params' is missing"),
    ],
)
def test_files_that_cannot_be_fitted_say_why(
    tmp_path: Path, rows: list[Mapping[str, Any]], message: str
) -> None:
    """No GPU, two GPUs, a CPU, a record without its parameters."""
    with pytest.raises(ConfigError, match=message):
        fit_files([written(tmp_path / "a.jsonl", rows)])


def test_the_command_writes_where_predict_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After `calibrate fit` the GPU's model says it is calibrated; a bad file exits with 2."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    file = written(tmp_path / "a.jsonl", records())
    assert main(["calibrate", "fit", str(file), "--json", str(tmp_path / "fit.json")]) == 0
    assert json.loads((tmp_path / "fit.json").read_text())["records"]["kernel"] == 14
    step = KernelModel.for_gpu(H200).predict(transformer_step(), Placement(H200))
    assert step.model == "kernels (h200, calibrated)"
    assert main(["calibrate", "fit", str(tmp_path / "none.jsonl")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_samples_that_waited_for_the_host_are_left_out() -> None:
    """A recurrent layer of more kernels than the queue holds was not timed on the GPU alone."""
    params = {"dtype": "bf16", "cell": "lstm", "layers": 2, "input": 64, "hidden": 512,
              "batch": 64, "seq": 256, "bidirectional": False, "direction": "forward"}  # fmt: skip
    few, many = ({**kernel("rnn", **params), "repeats": n} for n in (1, 4))
    assert len(samples_of([few])) == 1
    assert samples_of([many]) == []


def test_the_host_pays_for_each_layer_of_a_recurrent_call() -> None:
    """Promise: costs per call, per layer and per time step are separate, and the dispatch time of
    a gradient contains that of its layer.
    """
    true = {"host.call_s": 2e-4, "host.layer_s.forward": 1e-4, "host.layer_s.backward": 6e-4,
            "host.launch_s": 2e-5}  # fmt: skip
    values = Values({**DEFAULTS, "host.call_s.forward.rnn": 2e-4, "host.call_s.backward.rnn": 2e-4})
    rows = []
    for layers in (1, 2, 4, 8):
        for hidden in (64, 1024):  # cuDNN keeps the first in registers: no kernel per time step
            for direction in ("forward", "backward"):
                params = {"dtype": "fp32", "cell": "lstm", "layers": layers, "input": 64,
                          "hidden": hidden, "batch": 64, "seq": 24, "bidirectional": layers == 2,
                          "direction": direction}  # fmt: skip
                counts = [
                    of_operation(each)
                    for way in {"forward", direction}
                    for each in operations_of("rnn", {**params, "direction": way})
                ]
                host_s = sum(n * Values(true).find(c) for each in counts for c, n in each.items())
                rows.append({**kernel("rnn", **params), "host_s": host_s})
    found = with_host(values, rows)
    assert found["host.layer_s.forward"] == pytest.approx(1e-4, rel=0.25)
    assert found["host.layer_s.backward"] == pytest.approx(6e-4, rel=0.1)
    assert found["host.launch_s.rnn.forward"] == pytest.approx(2e-5, rel=0.1)


def test_rounds_of_a_step_are_one_point() -> None:
    """Medians, so that one slow round counts little; another sitting is another host."""
    one = {"model": "gru@10", "batch": 2, "precision": "bf16", "avg_power_w": None, "sitting": ""}
    host = [{"forward": s, "backward": 2 * s, "optimizer": 3 * s} for s in (1.0, 9.0, 2.0)]
    rounds = [
        {**one, "step_s": s, "host_s": h} for s, h in zip((5.0, 50.0, 6.0), host, strict=True)
    ]
    elsewhere = {**one, "step_s": 8.0, "sitting": "sitting 2"}
    together, alone = once_each([*rounds, elsewhere])
    assert (together["step_s"], together["avg_power_w"]) == (6.0, None)
    assert together["host_s"] == {"forward": 2.0, "backward": 4.0, "optimizer": 6.0}
    assert alone["step_s"] == 8.0


@pytest.mark.parametrize(
    "asked",
    [
        1e-3,
        {"forward": 1e-3},
        {"forward": 1e-3, "backward": 0.0, "optimizer": 1e-3},
        {"forward": 1e-3, "backward": float("nan"), "optimizer": 1e-3},
        {"forward": 1e-3, "backward": None, "optimizer": 1e-3},
    ],
)
def test_a_broken_dispatch_time_names_file_line_and_remedy(tmp_path: Path, asked: object) -> None:
    """An invalid time would make every constant NaN; older files have no such times."""
    step = {"record": "step", "model": "gru@100", "batch": 16, "precision": "bf16",
            "step_s": 1e-2, "avg_power_w": 200.0, "error": None}  # fmt: skip
    path = written(tmp_path / "suite.jsonl", [*records(), {**step, "host_s": asked}])
    line = len(records()) + 1
    with pytest.raises(ConfigError, match=rf"suite.jsonl:{line}: field 'host_s'.*collect again"):
        fit_files([path])
    for older in (step, {**step, "host_s": None}):
        assert fit_files([written(path, [*records(), older])], steps=False)


def test_adept_is_fitted_to_steps_on_one_and_on_several_gpus(tmp_path: Path) -> None:
    """A hop of 10 ms, far more than bandwidth explains, is found from steps on several GPUs."""
    pytest.importorskip("torch")
    rows: list[Mapping[str, Any]] = [MACHINE]
    for batch in (256, 1024):
        for gpus in (1, 2, 4):
            step_s = 0.004 + 1e-6 * batch + 2 * (gpus - 1) * 0.010
            rows.append({"record": "step", "model": "tabular_resnet@32", "batch": batch,
                         "precision": "fp32", "gpus": gpus, "step_s": step_s,
                         "avg_power_w": 300.0, "error": None})  # fmt: skip
    search = AdeptSearch(iterations=60, population=5)
    content, errors = fit_adept([written(tmp_path / "steps.jsonl", rows)], search=search)
    assert content["fitted_to"] == "6 steps, 4 of them on several GPUs"
    assert content["constants"]["parameters"]["hop_s"] == pytest.approx(0.010, rel=0.3)
    assert max(errors) < 0.25
    assert Adept.from_constants(content).parameters["hop_s"] < 0.1


def test_adept_needs_training_steps(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no training step was measured"):
        fit_adept([written(tmp_path / "a.jsonl", records())])
