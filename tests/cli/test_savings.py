"""`wattloop savings`: text, terminal, JSON and CSV."""

import csv
import io
import json
import time
from typing import Any

import pytest

from tests.cap.saver.test_totals import KWH, OBSERVED, record, saving, slurm
from tests.cli.conftest import Machine
from tests.cli.pseudo_terminal import in_terminal
from wattloop.cli.main import main
from wattloop.store.database import open_store
from wattloop.store.runs import insert_run


def fill(machine: Machine, *records: Any) -> None:
    with open_store(machine.store) as store:
        for each in records:
            insert_run(store, each)


def test_no_store_and_no_saver(here: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """Promise: an empty store is reported with a first command, and is not an error."""
    assert main(["savings"]) == 0
    assert "no runs yet" in capsys.readouterr().err
    assert not here.store.exists()
    fill(here, record("r1", None))
    assert main(["savings", "--since", "30d"]) == 0
    assert "no run with a saver since 30d; try: wattloop run --save" in capsys.readouterr().err


def test_sum_and_evidence(here: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """Promise: energy, time, money and CO2e with intervals, then each run with its slices."""
    fill(here, record("r1", saving()), record("r2", saving()), record("r3", OBSERVED))
    assert main(["savings"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(
        "saved       400 (358 to 442) Wh\n"
        "            20.0% (18.3 to 21.7%) of the GPU energy of 2 runs\n"
        "time        +2.0% (1.3 to 2.7%)\n"
    )
    assert "rest of the nodes in it: 11.8 Wh (42.4 kJ), not subtracted" in text
    assert "money       0.120 (0.107 to 0.133) EUR\n" in text
    assert "CO2e        60.0 g (53.6 g to 66.4 g)\n" in text
    assert "could save  120 (40 to 200) Wh, modelled; 1 run where nothing was set" in text
    assert "12 + 140" in text
    assert "could have saved 120 (40 to 200) Wh: permission denied" in text


def test_groups_and_since(here: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """Promise: sums per user, job, project and GPU; runs before `--since` do not count."""
    now_s = time.time()
    fill(
        here,
        record("r1", saving(), started_wall_s=now_s - 3_600),
        record("r2", saving(), started_wall_s=now_s - 3_600, user="bob", job=slurm(7)),
        record("r3", saving(), started_wall_s=now_s - 40 * 86_400),
    )
    for by, found in (("user", "bob"), ("job", "slurm::7"), ("project", "unknown"), ("gpu", "A40")):
        assert main(["savings", "--since", "30d", "--by", by]) == 0
        text = capsys.readouterr().out
        assert found in text
        assert "of the GPU energy of 2 runs" in text
    assert main(["savings", "--by", "cat"]) == 2
    assert "--by cat: unknown; choose one of user, job, project, gpu" in capsys.readouterr().err
    assert main(["savings", "--since", "yesterday evening"]) == 2


def test_json_and_csv(here: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """Promise: the same figures for programs, a column per bound."""
    fill(here, record("r1", saving()), record("r2", OBSERVED))
    assert main(["savings", "--json", "-", "--by", "user"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["total"]["saved_j"]["value"] == pytest.approx(0.2 * KWH)
    assert data["groups"][0]["name"] == "ada"
    assert {run["run_id"]: run["state"] for run in data["runs"]} == {
        "r1": "applied",
        "r2": "observed",
    }
    assert main(["savings", "--csv", "-"]) == 0
    rows = {row["run_id"]: row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert float(rows["r1"]["saved_j_high"]) == pytest.approx(0.23 * KWH)
    assert rows["r2"]["saved_j"] == ""
    assert float(rows["r2"]["expected_j_low"]) == pytest.approx(0.04 * KWH)
    assert main(["savings", "--csv", "out.csv", "--by", "user"]) == 0
    (group,) = csv.DictReader((here.folder / "out.csv").open())
    assert float(group["cost_EUR"]) == pytest.approx(0.06)
    assert main(["savings", "--csv", "-", "--json", "-"]) == 2
    assert main(["savings", "--csv", "/nowhere/out.csv"]) == 2


def test_on_a_terminal(bare: Machine) -> None:
    """Promise: the table fits into 80 columns."""
    fill(bare, record("20261116-214210-1ccf04", saving()), record("r2", OBSERVED))
    shown = in_terminal(bare.command("savings"), bare.environment, bare.folder, 80)
    assert shown.code == 0
    assert "20261116-214210-1ccf04" in shown.text
    assert max(map(len, shown.text.splitlines())) <= 80
