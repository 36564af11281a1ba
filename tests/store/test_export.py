"""Promises of exports: other programs can read CSV, JSON, Parquet and Prometheus."""

import csv
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from wattloop.core.errors import ConfigError
from wattloop.store.database import Store, open_store
from wattloop.store.export import export
from wattloop.store.journal_import import import_orphaned
from wattloop.store.runs import RunRecord, find_run, list_runs
from wattloop.testing.journals import close_journal, ended, header, root_window, write_journal

STEP = {
    "type": "step",
    "kind": "step",
    "index": 0,
    "begin_s": 1.0,
    "end_s": 1.5,
    "energy": {"gpu:0": [150.0, 1.5]},
    "metrics": {"loss": 0.25},
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "runs.db") as store:
        inner = root_window()._replace(name="epoch", window_id=1, parent_id=0)
        events = [{"type": "window", "window": inner.to_dict()}, STEP]
        write_journal(store.journals, "r1", events=events, end=ended())
        later = header("r2", name="=evil()", started_wall_s=2e9, command=["caf\udce9"])
        write_journal(store.journals, "r2", head=later, end=ended())
        import_orphaned(store, close_journal)
        yield store


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_runs_as_csv_have_scopes_and_provenance(store: Store, tmp_path: Path) -> None:
    """Each scope has its own column; a missing value is empty, not 0."""
    target = tmp_path / "runs.csv"
    export(store, list_runs(store), target=str(target))
    newest, oldest = rows(target)
    assert (oldest["run_id"], oldest["gpu_energy_j"], oldest["provenance"]) == (
        "r1",
        "3000.0",
        "measured",
    )
    assert oldest["dram_energy_j"] == ""
    assert oldest["missing"] == "dram"
    assert oldest["started"] == "2027-01-15T08:00:00.000Z"
    assert newest["name"].startswith("'=")


def test_samples_as_csv_are_what_the_replay_meter_reads(store: Store, tmp_path: Path) -> None:
    """One run: exactly time_s,domain,kind,value with raw readings, signals not among them."""
    target = tmp_path / "samples.csv"
    export(store, [find_run(store, "r1")], what="samples", target=str(target))
    assert target.read_text().splitlines()[0] == "time_s,domain,kind,value"
    found = rows(target)
    assert len(found) == 200
    assert {row["kind"] for row in found} == {"counter", "gauge"}
    assert found[10] == {
        "time_s": "1001.0",
        "domain": "cpu:0/package",
        "kind": "counter",
        "value": "50.0",
    }


def test_the_replay_meter_plays_an_export(store: Store, tmp_path: Path) -> None:
    """An exported run is read back with the same domains."""
    replay = pytest.importorskip("wattloop.meters.replay", reason="meter not in this tree")
    from wattloop.core.clock import VirtualClock

    target = tmp_path / "samples.csv"
    export(store, [find_run(store, "r1")], what="samples", target=str(target))
    meter = replay.Replay(target, VirtualClock())
    assert [domain.name for domain in meter.domains] == ["cpu:0/package", "gpu:0"]


def test_samples_of_several_runs_say_which(store: Store, tmp_path: Path) -> None:
    """With more than one run, each reading names its own."""
    target = tmp_path / "samples.csv"
    export(store, list_runs(store), what="samples", target=str(target))
    assert {row["run_id"] for row in rows(target)} == {"r1", "r2"}


def test_signals_windows_and_steps_as_csv(store: Store, tmp_path: Path) -> None:
    """Each table has its own columns; windows add up by `in_total`."""
    record = [find_run(store, "r1")]
    found = {}
    for what in ("signals", "windows", "steps"):
        export(store, record, what=what, target=str(tmp_path / what))
        found[what] = rows(tmp_path / what)
    assert found["signals"][0]["signal"] == "gpu:0/utilisation"
    assert [row["window"] for row in found["windows"]] == ["train", "train", "epoch", "epoch"]
    assert found["steps"][0]["energy_j gpu:0"] == "150.0"
    assert found["steps"][0]["metric loss"] == "0.25"
    run = find_run(store, "r1")
    ended_s = datetime.fromisoformat(found["steps"][0]["ended"]).timestamp()
    since_s = float(found["steps"][0]["end_s"]) - run.started_s
    assert ended_s == pytest.approx(run.started_wall_s + since_s, abs=2e-3)
    assert found["steps"][0]["energy_j"] == "150.0"


def test_json_has_everything_and_no_nan(store: Store, tmp_path: Path) -> None:
    """Runs come back as records; tables as lists of objects."""
    target = tmp_path / "runs.json"
    export(store, list_runs(store), file_format="json", target=str(target))
    data = json.loads(target.read_text(), parse_constant=pytest.fail)
    assert RunRecord.from_dict(data[1]) == find_run(store, "r1")
    export(store, [find_run(store, "r1")], what="steps", file_format="json", target=str(target))
    assert json.loads(target.read_text())[0]["metric loss"] == 0.25


def test_parquet_is_read_back(store: Store, tmp_path: Path) -> None:
    """Types and values survive in every table."""
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is an extra")
    target = tmp_path / "out.parquet"
    for what, count in {
        "runs": 2,
        "samples": 400,
        "windows": 6,
        "steps": 1,
        "signals": 200,
    }.items():
        export(store, list_runs(store), what=what, file_format="parquet", target=str(target))
        assert pq.read_table(target).num_rows == count
    export(store, list_runs(store), file_format="parquet", target=str(target))
    table = pq.read_table(target).to_pydict()
    assert table["energy_j"] == [3_500.0, 3_500.0]
    assert table["dram_energy_j"] == [None, None]


def test_parquet_without_pyarrow_names_the_extra(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message has the command that installs it, and the alternative."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"wattloop\[parquet\].*csv"):
        export(store, list_runs(store), file_format="parquet", target=str(tmp_path / "x"))
    assert not (tmp_path / "x").exists()


def test_prometheus_text_is_well_formed(store: Store, tmp_path: Path) -> None:
    """HELP and TYPE once per family, labels escaped, every line in the format."""
    tags = {"lr-0": "0.1", "name": "mine", "é": 2}
    odd = replace(find_run(store, "r1"), name='a"b\\c\nd', run_id="odd", tags=tags)
    target = tmp_path / "wattloop.prom"
    export(store, [find_run(store, "r1"), odd], file_format="prometheus", target=str(target))
    text = target.read_text()
    line = re.compile(r'[a-z_]+\{([a-z_0-9]+="(\\.|[^"\\])*",?)+\} \S+')
    samples = [part for part in text.splitlines() if not part.startswith("#")]
    assert all(line.fullmatch(part) for part in samples)
    assert text.count("# TYPE wattloop_run_energy_joules gauge") == 1
    assert 'name="a\\"b\\\\c\\nd"' in text
    assert 'tag_lr_0="0.1",tag_name="mine",tag__="2"' in text
    expected = (
        'wattloop_run_energy_joules{run="r1",name="train",status="finished",domain="gpu:0",'
        'scope="gpu",provenance="measured",in_total="true"} 3000.0'
    )
    assert expected in samples


def test_prometheus_has_steps_of_runs_that_have_them(store: Store, tmp_path: Path) -> None:
    """Promise: steps, joules per step and token; no zero for a run without steps."""
    target = tmp_path / "x.prom"
    run = find_run(store, "r1")
    other = replace(run, run_id="other")
    totals = {"r1": {"steps": 160, "step_j": 0.595, "tokens": 320.0, "samples": None}}
    totals["r1"]["tokens_per_j"] = 3.4
    export(store, [run, other], file_format="prometheus", target=str(target), totals=totals)
    lines = [line for line in target.read_text().splitlines() if not line.startswith("#")]
    found = [line for line in lines if "_step" in line or "_sample" in line or "_token" in line]
    labels = '{run="r1",name="train",status="finished"}'
    assert found == [
        f"wattloop_run_steps{labels} 160",
        f"wattloop_run_tokens{labels} 320.0",
        f"wattloop_run_step_energy_joules{labels} 0.595",
        f"wattloop_run_tokens_per_joule{labels} 3.4",
    ]


def test_totals_of_steps_and_phases_as_tables(store: Store, tmp_path: Path) -> None:
    """Promise: a run's row has the totals of its steps, `phases` a row per phase; a run without
    steps has empty cells.
    """
    run = find_run(store, "r1")
    phases = [{"name": "training", "time_s": 4.0, "energy_j": None, "parts": 2}]
    totals = {"r1": {"steps": 4, "token_j": 0.5, "tokens_per_j": 2.0, "phases": phases}}
    records = [run, replace(run, run_id="other")]
    found = {}
    for what in ("runs", "phases"):
        target = tmp_path / f"{what}.csv"
        export(store, records, what=what, target=str(target), totals=totals)
        found[what] = list(csv.DictReader(target.open()))
    assert [row["steps"] for row in found["runs"]] == ["4", ""]
    assert [row["tokens_per_j"] for row in found["runs"]] == ["2.0", ""]
    phase = {"run_id": "r1", "phase": "training", "time_s": "4.0", "energy_j": "", "parts": "2"}
    assert found["phases"] == [phase]


def test_prometheus_leaves_out_what_another_run_counts_and_what_is_missing(
    store: Store, tmp_path: Path
) -> None:
    """Sums over runs count each joule once; an unread domain is absent, not 0."""
    rank = replace(find_run(store, "r1"), counted=False, counted_by="r2")
    blind = replace(find_run(store, "r1"), result=root_window(cpu_j=None))
    target = tmp_path / "x.prom"
    export(store, [rank], file_format="prometheus", target=str(target))
    assert "energy_joules" not in target.read_text()
    export(store, [blind], file_format="prometheus", target=str(target))
    assert "cpu:0/package" not in target.read_text()
    with pytest.raises(ConfigError, match="use csv"):
        export(store, [rank], what="samples", file_format="prometheus", target=str(target))


def test_a_failed_export_leaves_the_old_file(store: Store, tmp_path: Path) -> None:
    """The export is whole or absent: no half file and no temporary one stays."""
    target = tmp_path / "out.csv"
    target.write_text("old")
    broken = replace(find_run(store, "r1"), feeds=[{"domains": [{"name": "x"}]}])
    with pytest.raises(KeyError):
        export(store, [broken], what="samples", target=str(target))
    assert target.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir() if "out.csv" in p.name) == ["out.csv"]


def test_targets_that_cannot_be_written_are_named(store: Store, tmp_path: Path) -> None:
    """A folder, or a file in a missing folder; a device is written, not replaced."""
    for target in (tmp_path, tmp_path / "no" / "file.csv"):
        with pytest.raises(ConfigError, match=re.escape(str(target))):
            export(store, list_runs(store), target=str(target))
    export(store, list_runs(store), target=os.devnull)
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)


def test_unknown_words_name_the_known_ones(store: Store) -> None:
    """The error for a wrong table or format lists the known ones."""
    with pytest.raises(ConfigError, match="samples, signals"):
        export(store, [], what="joules")
    with pytest.raises(ConfigError, match="parquet"):
        export(store, [], file_format="xml")
