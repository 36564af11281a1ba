"""Promises of tables of throughput, and of counts between and beyond their rows."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattloop.core.errors import ConfigError
from wattloop.schedule.estimates.throughputs import (
    ThroughputRow,
    Throughputs,
    ThroughputSeries,
    load_throughputs,
)

HEAD = "model,gpu,gpus,batch,samples_per_s"


def _written(folder: Path, text: str, name: str = "t.csv") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def _series(points: dict[int, float]) -> ThroughputSeries:
    rows = [ThroughputRow("m", "", "v100", gpus, 8, False, rate) for gpus, rate in points.items()]
    found = Throughputs(rows, "here").series("m", "", "v100", 8, spread=False)
    assert found is not None
    return found


def test_measured_counts_are_as_measured() -> None:
    """The table's values are returned without smoothing, odd ones included."""
    series = _series({1: 100.0, 2: 150.0, 8: 900.0})
    assert series.at(np.array([1.0, 2.0, 8.0])) == pytest.approx([100.0, 150.0, 900.0])


def test_between_counts_is_a_line_in_log2() -> None:
    """4 GPUs lie half-way between 2 and 8."""
    assert _series({2: 100.0, 8: 400.0}).at(np.array([4.0]))[0] == pytest.approx(200.0)


@given(
    rates=st.lists(st.floats(1.0, 1e6), min_size=2, max_size=4),
    count=st.integers(1, 512),
)
def test_beyond_counts_scaling_is_at_most_perfect(rates: list[float], count: int) -> None:
    """More GPUs than measured are never slower than the largest count, nor better than linear."""
    counts = [2, 4, 8, 16][: len(rates)]
    series = _series(dict(zip(counts, rates, strict=True)))
    found = float(series.at(np.array([float(count)]))[0])
    if count > counts[-1]:
        most = rates[-1] * count / counts[-1]
        assert rates[-1] * (1 - 1e-9) <= found <= most * (1 + 1e-9)
    if count < counts[0]:
        assert rates[0] * count / counts[0] * (1 - 1e-9) <= found <= rates[0] * (1 + 1e-9)


def test_one_count_says_nothing_of_others() -> None:
    """A missing value is not perfect scaling."""
    found = _series({1: 100.0}).at(np.array([1.0, 2.0]))
    assert found[0] == pytest.approx(100.0)
    assert np.isnan(found[1])


def test_a_table_of_our_own(tmp_path: Path) -> None:
    """Optional columns, remarks and names of GPUs in any case are understood."""
    rows = "m,V100,1,8,100,bf16,,200\nm,V100,2,8,150,bf16,1,\n"
    text = f"# mine\n{HEAD},precision,spread,power_w\n{rows}"
    table = load_throughputs([_written(tmp_path, text)])
    packed = table.series("m", "bf16", "v100", 8, spread=False)
    assert packed is not None
    assert packed.power_at(np.array([1.0])).tolist() == [200.0]
    apart = table.series("m", "bf16", "v100", 8, spread=True)
    assert apart is not None
    assert np.isnan(apart.power_at(np.array([2.0]))[0])
    assert table.series("m", "fp32", "v100", 8, spread=False) is None
    assert (dict(table.models), table.gpus("m")) == ({"m": (8.0,)}, ("v100",))


def test_a_precision_that_is_not_told_is_any(tmp_path: Path) -> None:
    """A table without the column has one precision, and answers for any."""
    table = load_throughputs([_written(tmp_path, f"{HEAD}\nm,v100,1,8,100\n")])
    assert table.series("m", "bf16", "v100", 8, spread=False) is not None


def test_a_job_without_precision_has_the_only_one(tmp_path: Path) -> None:
    """Where there are several the message asks for one."""
    rows = "m,v100,1,8,100,fp16\nm,v100,1,16,100,fp16\nm,v100,1,16,50,fp32\n"
    table = load_throughputs([_written(tmp_path, f"{HEAD},precision\n{rows}")])
    assert table.series("m", "", "v100", 8, spread=False) is not None
    assert table.series("m", "", "v100", 32, spread=False) is None
    with pytest.raises(ConfigError, match="has it in fp16, fp32; say which precision"):
        table.series("m", "", "v100", 16, spread=False)


def test_0_is_does_not_run_there(tmp_path: Path) -> None:
    """Out of memory is written as 0 samples per second, and is not a placement."""
    table = load_throughputs([_written(tmp_path, f"{HEAD}\nm,v100,1,8,100\nm,k80,1,8,0\n")])
    assert table.gpus("m") == ("v100",)


def test_gavels_table(tmp_path: Path) -> None:
    """Steps times batch are samples; unconsolidated is spread; a model without batch has 1."""
    text = (
        "source,model,batch,gpu_type,scale_factor,steps_per_s\n"
        "physical_cluster,ResNet-18,256,v100,1,10\n"
        "physical_cluster,ResNet-18,256,v100,2,18\n"
        "physical_cluster,ResNet-18,256,v100_unconsolidated,1,9\n"
        "physical_cluster,ResNet-18,256,v100_unconsolidated,2,12\n"
        "simulation,ResNet-18,256,v100,1,99\n"
        "physical_cluster,A3C,,k80,1,3.5\n"
        "physical_cluster,A3C,,p100,1,0\n"
    )
    table = load_throughputs([_written(tmp_path, text)])
    packed = table.series("ResNet-18", "", "v100", 256, spread=False)
    apart = table.series("ResNet-18", "", "v100", 256, spread=True)
    assert packed is not None
    assert apart is not None
    assert packed.samples_s.tolist() == [2560.0, 4608.0]
    assert (apart.gpus.tolist(), apart.samples_s.tolist()) == ([2.0], [3072.0])
    assert (table.gpus("A3C"), table.gpus("ResNet-18")) == (("k80",), ("v100",))
    assert table.models["A3C"] == (1.0,)


def test_elasticflows_table(tmp_path: Path) -> None:
    """A global batch of 64 is 32 a GPU on two, and 64 samples a step all the same."""
    text = "gpu_type,model,global_batch,gpus,steps_per_s\nA100,bert,64,1,6\nA100,bert,64,2,8\n"
    table = load_throughputs([_written(tmp_path, text)])
    assert table.models == {"bert": (32.0, 64.0)}
    series = table.series("bert", "", "a100", 32, spread=False)
    assert series is not None
    assert (series.gpus.tolist(), series.samples_s.tolist()) == ([2.0], [512.0])


def test_later_files_overrule_earlier_ones(tmp_path: Path) -> None:
    """An operator corrects a published table with a few lines of their own."""
    files = [
        _written(tmp_path, f"{HEAD}\nm,v100,1,8,{rate}\n", f"{rate}.csv") for rate in (100, 70)
    ]
    series = load_throughputs(files).series("m", "", "v100", 8, spread=False)
    assert series is not None
    assert series.samples_s.tolist() == [70.0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("model,gpu\nm,v100\n", "gpus, batch, samples_per_s are missing"),
        (f"{HEAD}\nm,v100,1,8\n", "t.csv:2: 4 fields"),
        (f"{HEAD}\nm,v100,1,8,fast\n", "t.csv:2: samples_per_s is 'fast'"),
        (f"{HEAD}\nm,v100,1,8,nan\n", "samples_per_s is 'nan'"),
        (f"{HEAD}\n\nm,v100,1.5,8,9\n", "t.csv:3: gpus is '1.5'; write a whole number"),
        (f"{HEAD}\nm,v100,0,8,9\n", "gpus is '0'"),
        (f"{HEAD},spread\nm,v100,1,8,9,maybe\n", "spread is 'maybe'; write 0 or 1"),
        (f"{HEAD}\nm,v100,1,8,0\n", "no throughput above 0"),
        (f"{HEAD}\n", "no throughput above 0"),
    ],
)  # fmt: skip
def test_faults_are_told_by_line(tmp_path: Path, text: str, said: str) -> None:
    """The error has line, column, the fault and the right form."""
    with pytest.raises(ConfigError, match=said):
        load_throughputs([_written(tmp_path, text)])


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """The message has its name."""
    with pytest.raises(ConfigError, match=r"nothing\.csv: cannot be read"):
        load_throughputs([str(tmp_path / "nothing.csv")])
