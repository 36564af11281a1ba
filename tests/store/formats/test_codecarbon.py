"""Promises of the import of CodeCarbon's files: honest provenance, once, from any version."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from wattloop.core.errors import ConfigError
from wattloop.core.records import Provenance
from wattloop.store.database import Store, open_store
from wattloop.store.formats.codecarbon import import_codecarbon, read_codecarbon
from wattloop.store.runs import find_run, list_runs

V1 = "timestamp,project_name,duration,emissions,energy_consumed,country_name,country_iso_code"
V2 = (
    "timestamp,project_name,run_id,duration,emissions,emissions_rate,cpu_power,gpu_power,"
    "ram_power,cpu_energy,gpu_energy,ram_energy,energy_consumed,country_name,country_iso_code,"
    "region,cloud_provider,cloud_region,os,python_version,codecarbon_version,cpu_count,cpu_model,"
    "gpu_count,gpu_model,longitude,latitude,ram_total_size,tracking_mode,on_cloud,pue"
)
V3 = (
    V2.replace("run_id,", "run_id,experiment_id,").replace(
        "energy_consumed,", "energy_consumed,water_consumed,"
    )
    + ",wue,cpu_utilization_percent,gpu_utilization_percent,ram_utilization_percent,ram_used_gb"
)


def line(columns: str, **cells: object) -> str:
    values = {
        "timestamp": "2026-03-01T12:00:00",
        "project_name": "demo",
        "run_id": "5b0fa12a-3dd7",
        "duration": 60.0,
        "emissions": 0.001,
        "cpu_energy": 0.002,
        "gpu_energy": 0.004,
        "ram_energy": 0.0005,
        "energy_consumed": 0.0065,
        "country_iso_code": "FRA",
        "codecarbon_version": "2.3.5",
        "gpu_count": 4,
        "gpu_model": "4 x NVIDIA A40",
        "tracking_mode": "machine",
    } | cells
    return ",".join(str(values.get(name, "")) for name in columns.split(","))


def file_of(folder: Path, *lines: str) -> Path:
    path = folder / "emissions.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "runs.db") as store:
        yield store


@pytest.mark.parametrize("columns", [V2, V3], ids=["v2", "v3"])
def test_domains_are_in_joules_and_marked(store: Store, tmp_path: Path, columns: str) -> None:
    """kWh become joules; CPU and RAM are estimated, an NVIDIA GPU was read through NVML."""
    import_codecarbon(store, file_of(tmp_path, columns, line(columns)))
    record = find_run(store, "codecarbon-5b0fa12a")
    assert record.result is not None
    domains = {domain.name: domain for domain in record.result.domains}
    assert domains["cpu"].energy_j == pytest.approx(7_200)
    assert domains["cpu"].provenance is Provenance.ESTIMATED
    assert domains["dram"].provenance is Provenance.ESTIMATED
    assert domains["gpu"].provenance is Provenance.MEASURED
    assert domains["gpu"].source == "codecarbon 2.3.5"
    assert record.result.provenance is Provenance.ESTIMATED
    assert domains["cpu"].uncertainty_j == pytest.approx(3_600)
    assert record.accounting is not None
    assert record.accounting["carbon_g"] == pytest.approx(1.0)
    assert (record.duration_s, record.kind) == (60.0, "imported")
    assert record.tags["tracking_mode"] == "machine"


def test_version_1_has_a_sum_only(store: Store, tmp_path: Path) -> None:
    """Without parts the sum is imported as estimated, and no part is invented."""
    path = file_of(tmp_path, V1, line(V1), line(V1, timestamp="2026-03-02 12:00:00"))
    assert len(import_codecarbon(store, path).added) == 2
    (domain,) = list_runs(store)[0].result.domains  # type: ignore[union-attr] - imported above
    assert (domain.name, domain.provenance) == ("total", Provenance.ESTIMATED)
    assert import_codecarbon(store, path).added == []


def test_importing_twice_adds_nothing(store: Store, tmp_path: Path) -> None:
    """On a second import every run is known."""
    path = file_of(tmp_path, V2, line(V2), line(V2, run_id="other"))
    assert len(import_codecarbon(store, path).added) == 2
    again = import_codecarbon(store, path)
    assert (again.added, len(again.known)) == ([], 2)
    assert len(list_runs(store)) == 2


def test_flushed_lines_of_one_run_are_one_run(store: Store, tmp_path: Path) -> None:
    """Growing totals of one tracker: the longest counts, also when the file grows later."""
    early, late = line(V2), line(V2, duration=90.0, cpu_energy=0.003)
    assert len(import_codecarbon(store, file_of(tmp_path, V2, early)).added) == 1
    outcome = import_codecarbon(store, file_of(tmp_path, V2, early, late))
    assert len(outcome.updated) == 1
    (record,) = list_runs(store)
    assert record.duration_s == 90.0


def test_a_zero_is_missing_not_measured(store: Store, tmp_path: Path) -> None:
    """A CPU at 0 kWh was not read; a machine without GPU has no GPU to miss."""
    cells = {"cpu_energy": 0, "gpu_energy": 0, "gpu_count": "", "gpu_model": ""}
    (record,), _ = read_codecarbon(file_of(tmp_path, V2, line(V2, **cells)))
    assert record.result is not None
    assert [domain.name for domain in record.result.domains] == ["dram"]
    assert [missing.name for missing in record.result.missing] == ["cpu"]
    assert not record.result.complete


def test_bad_lines_are_named_and_the_good_ones_imported(store: Store, tmp_path: Path) -> None:
    """Line number, column and value; a broken line loses only itself."""
    path = file_of(
        tmp_path,
        V2,
        line(V2, run_id="good"),
        line(V2, run_id="b1", duration="soon"),
        line(V2, run_id="b2", cpu_energy=-1),
        line(V2, run_id="b3", timestamp="yesterday"),
        "half,a,line",
        line(V2, run_id="b4", gpu_energy="nan"),
    )
    outcome = import_codecarbon(store, path)
    assert outcome.added == ["codecarbon-good"]
    expected = (":3: duration is 'soon'", ":4: cpu_energy", ":5: timestamp", ":6: has", ":7: gpu")
    for words, problem in zip(expected, outcome.problems, strict=True):
        assert f"emissions.csv{words}" in problem


def test_other_files_are_refused(tmp_path: Path) -> None:
    """A file of another kind, a folder or bytes: the message names what is missing."""
    with pytest.raises(ConfigError, match=r"not an emissions\.csv.*duration"):
        read_codecarbon(file_of(tmp_path, "a,b", "1,2"))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_codecarbon(tmp_path)
    (tmp_path / "emissions.csv").write_bytes(b"\xff\xfe\x00" * 50)
    with pytest.raises(ConfigError, match="not a CSV"):
        read_codecarbon(tmp_path / "emissions.csv")


@pytest.mark.parametrize(
    ("model", "provenance"),
    [
        ("1 x A100-SXM4-40GB", Provenance.MEASURED),
        ("1 x Tesla V100-SXM2-16GB", Provenance.MEASURED),
        ("2 x L40S", Provenance.MEASURED),
        ("8 x AMD Instinct MI100", Provenance.ESTIMATED),
        ("1 x Arc A770", Provenance.ESTIMATED),
    ],
)
def test_nvidia_gpus_are_known_by_names_of_any_driver(
    store: Store, tmp_path: Path, model: str, provenance: Provenance
) -> None:
    """Older versions leave out the maker; GPUs of other makers were not read through NVML."""
    import_codecarbon(store, file_of(tmp_path, V2, line(V2, gpu_model=model)))
    result = find_run(store, "codecarbon-5b0fa12a").result
    assert result is not None
    assert {d.name: d.provenance for d in result.domains}["gpu"] is provenance


@pytest.mark.parametrize("order", [("run", "tasks"), ("tasks", "run")])
def test_tasks_are_parts_of_their_run(store: Store, tmp_path: Path, order: tuple[str, ...]) -> None:
    """Promise: a file of tasks leaves the run unchanged, and no joule is in a total twice."""
    columns = f"task_name,{V2}"
    files = {
        "run": (V2, line(V2, duration=60.0, energy_consumed=0.0065)),
        "tasks": (
            columns,
            line(columns, task_name="load data", duration=10.0, cpu_energy=0.0001),
            line(columns, task_name="train", duration=90.0, cpu_energy=0.0010),
        ),
    }
    for name in order:
        done = import_codecarbon(store, file_of(tmp_path, *files[name]))
        assert (len(done.added), done.updated, done.problems) == (
            1 if name == "run" else 2,
            [],
            [],
        )
    whole = find_run(store, "codecarbon-5b0fa12a-3dd7")
    assert whole.energy_j == pytest.approx(0.0065 * 3.6e6)
    tasks = {record.name: record for record in list_runs(store) if record.parent_run_id}
    assert set(tasks) == {"demo: load data", "demo: train"}
    for task in tasks.values():
        assert (task.parent_run_id, task.counted_by) == (whole.run_id, whole.run_id)
        assert not task.counted


def test_tasks_without_their_run_count(store: Store, tmp_path: Path) -> None:
    """Promise: a file of tasks alone is not lost from totals."""
    columns = f"task_name,{V2}"
    import_codecarbon(store, file_of(tmp_path, columns, line(columns, task_name="train")))
    (task,) = list_runs(store)
    assert task.counted
