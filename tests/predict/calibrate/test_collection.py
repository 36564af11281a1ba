"""Promises of a collection: each case once, failures kept, nothing lost."""

import json

import pytest

from wattloop.core.errors import ConfigError, WattloopError
from wattloop.predict.calibrate.collection import (
    Collection,
    SampleFile,
    chosen_sections,
    collect,
    records,
)
from wattloop.predict.calibrate.families.base import CalibrationCase
from wattloop.predict.calibrate.gpu_sensor import GpuSensor
from wattloop.predict.calibrate.machine import CalibrationDevice
from wattloop.predict.calibrate.suite import tiny_cases

torch = pytest.importorskip("torch", reason="the suite measures torch")

from wattloop.predict.calibrate.machine import open_device, open_sensor  # noqa: E402 - after the skip


@pytest.fixture(scope="module")
def bench():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield open_device("cpu")
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def collected(bench, tmp_path_factory):
    """Collect the whole tiny suite once."""
    path = tmp_path_factory.mktemp("suite") / "tiny.jsonl"
    file = SampleFile(path, resume=False)
    results = collect(bench, open_sensor(bench), file, budget_s=300)
    file.close()
    return path, results


def test_every_kind_of_case_runs(collected):
    """Each family's builder, the host's calls, power, a model and its profile."""
    path, results = collected
    assert {name: result.failed for name, result in results.items()} == dict.fromkeys(results, 0)
    rows = list(records(path))
    assert rows[0]["record"] == "machine"
    assert {row["record"] for row in rows} == {
        "machine", "kernel", "host", "power", "step", "profile"
    }  # fmt: skip
    kernels = [row for row in rows if row["record"] == "kernel"]
    assert all(row["seconds"] > 0 for row in kernels if row["family"] != "rnn")


def test_a_step_has_the_columns_of_the_first_measurements(collected):
    """Rows of both kinds go into one table; an unreadable value is null, not zero."""
    path, _ = collected
    step, _ = [row for row in records(path) if row["record"] == "step"]
    assert (step["model"], step["batch"], step["precision"]) == ("gru@10", 2, "bf16")
    assert step["step_s"] > 0
    assert step["params"] == 1_027_363
    assert step["avg_power_w"] is None
    assert step["energy_j_per_step"] is None


def test_the_machine_says_how_quick_its_host_is(collected):
    """Every sitting probes the host, since the next one may run on another machine."""
    path, _ = collected
    machine = next(records(path))
    assert machine["gpu"] == "cpu"
    assert machine["torch"] == torch.__version__
    assert machine["probe"]["gpu_add_s"] > 0


def test_resuming_runs_only_the_missing_cases(bench, collected, tmp_path):
    """A killed collection, even in the middle of a line, repeats no finished case."""
    path, _ = collected
    lines = path.read_text().splitlines()
    cut = tmp_path / "cut.jsonl"
    kept = [line for line in lines if '"record":"kernel"' not in line or '"family":"gemm"' in line]
    cut.write_text("\n".join(kept) + "\n" + lines[-1][:40])
    file = SampleFile(cut, resume=True)
    results = collect(bench, open_sensor(bench), file, sections=["kernels"], budget_s=300)
    file.close()
    assert (results["kernels"].kept, results["kernels"].taken) == (2, len(lines_of(lines)) - 2)
    keys = [row["case"] for row in records(cut) if row["record"] == "kernel"]
    assert sorted(keys) == sorted(json.loads(line)["case"] for line in lines_of(lines))


def lines_of(lines):
    return [line for line in lines if '"record":"kernel"' in line]


def test_a_case_that_fails_is_kept_with_its_reason(bench, tmp_path):
    """One bad case ends neither the collection nor the file, and is not repeated."""
    file = SampleFile(tmp_path / "bad.jsonl", resume=False)
    collection = Collection(bench, open_sensor(bench), file)
    bad = CalibrationCase("kernels", "gemm", {"dtype": "fp32", "b": 1, "m": 2})
    result = collection.take("kernels", [bad, tiny_cases("kernels")[0]], 60)
    again = collection.take("kernels", [bad], 60)
    file.close()
    first, second = records(tmp_path / "bad.jsonl")
    assert "KeyError" in first["error"]
    assert second["error"] is None
    assert (result.taken, result.failed, again.taken) == (2, 1, 0)
    assert "KeyError" in result.last_error


def test_no_time_takes_no_case(bench, tmp_path):
    """The time budget has priority."""
    file = SampleFile(tmp_path / "none.jsonl", resume=False)
    result = Collection(bench, open_sensor(bench), file).take("kernels", tiny_cases("kernels"), 0)
    file.close()
    assert result.taken == 0


def test_a_file_of_another_gpu_is_not_continued(bench, tmp_path):
    """Constants of two GPUs in one file would fit neither."""
    path = tmp_path / "other.jsonl"
    path.write_text('{"record":"machine","gpu":"NVIDIA H200"}\n')
    file = SampleFile(path, resume=True)
    with pytest.raises(ConfigError, match="'gpu' says NVIDIA H200"):
        collect(bench, open_sensor(bench), file, budget_s=1)
    file.close()


def test_sections_are_checked():
    """A misspelt section is an error, not left out."""
    assert chosen_sections("") == ["host", "kernels", "power", "steps", "waiting", "profile"]
    assert chosen_sections("power, host") == ["host", "power"]
    with pytest.raises(ConfigError, match="kernel: known are"):
        chosen_sections("kernel")


class _Breaking(CalibrationDevice):
    """A device that a case breaks, as an illegal access breaks a CUDA context."""

    broken = False

    def synchronize(self):
        if self.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def normal(self, shape, dtype):
        self.broken = True
        self.synchronize()


def test_a_gpu_that_broke_ends_the_collection(tmp_path):
    """The breaking case is not repeated, and later cases are not affected."""
    path = tmp_path / "a.jsonl"
    file = SampleFile(path, resume=False)
    collection = Collection(_Breaking("cpu", 4096, 0), GpuSensor(), file)
    with pytest.raises(WattloopError, match=r"stopped at .*illegal memory access.*--resume"):
        collection.take("kernels", tiny_cases("kernels"), 60)
    file.close()
    assert len(list(records(path))) == 1
