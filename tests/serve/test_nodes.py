"""Promises of a fleet's server: a token has its role's rights only, and figures are checked."""

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed")

from fastapi.testclient import TestClient

from tests.fleet.delivery.served import domain, end_of, header_of, whole
from wattloop.core.errors import ConfigError
from wattloop.fleet import tokens as token_file
from wattloop.fleet.delivery.batch import Piece, pack_batch
from wattloop.fleet.tokens import Role, add_token, revoke_token
from wattloop.serve.app import create_app
from wattloop.serve.options import ServeOptions
from wattloop.store.journal import END, EVENT, HEADER, json_frame, pack_frame

RUN = "20260101-000000-abcdef"
NASTY = "<script>alert(1)</script>"


class Fleet:
    """A server that listens on other addresses, and the tokens of its clients."""

    def __init__(self, folder: Path, client: TestClient, secrets: dict[str, str]) -> None:
        self.folder, self.client, self.secrets = folder, client, secrets

    def get(self, path: str, who: str = "reader") -> Any:
        return self.client.get(path, headers=self._as(who))

    def post(self, path: str, who: str, content: bytes | str) -> Any:
        return self.client.post(path, headers=self._as(who), content=content)

    def deliver(
        self, *pieces: Piece, who: str = "n1", node: str = "n1", ahead_s: float = 0.0
    ) -> Any:
        body = pack_batch(time.time() + ahead_s, None, pieces)
        return self.post(f"/api/v1/nodes/{node}/delivery", who, body)

    def journal(self, run_id: str = RUN, **changes: Any) -> bytes:
        folder = self.folder / "made"
        folder.mkdir(exist_ok=True)
        whole(folder, run_id, **changes)
        path = folder / f"{run_id}.journal"
        data = path.read_bytes()
        path.unlink()
        return data

    def _as(self, who: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.secrets.get(who, who)}"}


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setattr(token_file, "CHECK_EVERY_S", 0.0)
    tokens = tmp_path / "tokens.json"
    secrets = {n: add_token(tokens, n, Role.NODE, n) for n in ("n1", "n2")}
    for role in (Role.READER, Role.WRITER, Role.SCHEDULER):
        secrets[role.value] = add_token(tokens, role.value, role)
    secrets["admin"] = "the-one-for-all"
    options = ServeOptions(
        store=str(tmp_path / "runs.db"), host="0.0.0.0", token=secrets["admin"], tokens=tokens
    )
    with TestClient(create_app(options)) as client:
        yield Fleet(tmp_path, client, secrets)


@pytest.mark.parametrize(
    ("who", "reads", "writes_runs", "speaks"),
    [
        ("n1", 403, 200, 200),
        ("n2", 403, 403, 403),
        ("reader", 200, 403, 403),
        ("scheduler", 200, 403, 403),
        ("writer", 200, 200, 403),
        ("admin", 200, 200, 200),
        ("wrong", 401, 401, 401),
    ],
)
def test_a_token_opens_what_it_is_for(
    fleet: Fleet, who: str, reads: int, writes_runs: int, speaks: int
) -> None:
    """By role, and for a node only its own runs."""
    assert fleet.get("/api/v1/jobs", who).status_code == reads
    assert fleet.get("/api/v1/fleet/power", who).status_code == reads
    data = fleet.journal(host="n1")
    assert fleet.post(f"/api/v1/ingest/{RUN}", who, data).status_code == writes_runs
    said = fleet.post("/api/v1/nodes/n1/status", who, '{"power_w": {"gpu:0": 100}}')
    assert said.status_code == speaks


def test_a_token_in_a_cookie_reads_but_never_writes(fleet: Fleet) -> None:
    """A page of another site can make a browser send cookies, not headers."""
    fleet.client.cookies.set("wattloop_token", fleet.secrets["admin"])
    assert fleet.client.get("/").status_code == 200
    assert fleet.client.post("/api/v1/nodes/n1/status", content="{}").status_code == 401


def test_a_revoked_token_is_refused_at_once(fleet: Fleet) -> None:
    """It needs no restart, and a file that others may write lets no client in."""
    assert fleet.get("/api/v1/nodes").status_code == 200
    revoke_token(fleet.folder / "tokens.json", "reader")
    assert fleet.get("/api/v1/nodes").status_code == 401
    (fleet.folder / "tokens.json").chmod(0o666)
    assert fleet.get("/api/v1/nodes", "scheduler").status_code == 401
    with pytest.raises(ConfigError, match="chmod 600"):
        create_app(ServeOptions(store=":memory:", tokens=fleet.folder / "tokens.json"))


def test_secrets_are_nowhere_on_disk(fleet: Fleet) -> None:
    """The file of tokens has hashes."""
    text = (fleet.folder / "tokens.json").read_text()
    assert not any(secret in text for secret in fleet.secrets.values())


def test_no_node_writes_another_nodes_run(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """A node neither begins, continues nor replaces another's run, nor uses its name."""
    n1 = fleet.journal(host="n1")
    whole_b = len(n1)
    assert fleet.deliver(Piece(RUN, 0, n1[:900])).json()["pieces"][0]["offset"] == 900
    answers = [
        fleet.deliver(Piece(RUN, 900, b"x" * 50), who="n2", node="n2"),
        fleet.deliver(Piece(RUN, 0), who="n2", node="n2"),
        fleet.deliver(Piece("other-run", 0, fleet.journal("other-run")), who="n2", node="n2"),
    ]
    assert all("another node" in a.json()["pieces"][0]["refused"] for a in answers)
    # a second header in the middle that names another node and run
    twice = header_of("mine", host="n2")
    sly = json_frame(HEADER, {"format": 1, **twice})
    sly += json_frame(HEADER, {"format": 1, **header_of(RUN)}) + json_frame(END, end_of())
    assert fleet.deliver(Piece("mine", 0, sly), who="n2", node="n2").json()["pieces"][0]["refused"]
    assert fleet.deliver(Piece(RUN, 900, n1[900:])).json()["pieces"][0]["ended"]
    stored = fleet.get(f"/api/v1/runs/{RUN}").json()
    again = fleet.deliver(Piece(RUN, 0, fleet.journal(energy_j=1.0), final=True)).json()
    assert again["pieces"][0]["ended"]
    assert fleet.get(f"/api/v1/runs/{RUN}").json() == stored
    assert (stored["energy_j"], whole_b > 900) == (1_000.0, True)
    said = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert any("'n2' (node of n2)" in line and "another node" in line for line in said)
    assert fleet.get("/api/v1/nodes").json()["nodes"][1]["refusal"]


def test_a_flood_of_refusals_is_counted_not_written(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """One log line reports it, and the page of nodes has their number."""
    for _ in range(50):
        fleet.get("/api/v1/jobs", "guess\r\nforged: line")
    lines = [record.getMessage() for record in caplog.records]
    assert sum("refused" in line for line in lines) == 1
    assert not any("\n" in line for line in lines)
    assert fleet.client.app.state.wattloop.refusals.count == 50  # type: ignore[attr-defined] # FastAPI


@pytest.mark.parametrize(
    ("energy_j", "seconds", "why"),
    [
        (1e6, 10.0, "more than 400 W"),
        (-5.0, 10.0, "negative"),
        (math.nan, 10.0, "nan"),
        (math.inf, 10.0, "inf"),
        (1_000.0, 1e12, "in the future"),
    ],
)
def test_figures_that_cannot_be_are_kept_marked_and_in_no_total(
    fleet: Fleet, energy_j: float, seconds: float, why: str
) -> None:
    """Above the devices' power, negative, not a number, or from the future."""
    good = "20260101-000001-aaaaaa"
    fleet.deliver(Piece(good, 0, fleet.journal(good)))
    answer = fleet.deliver(Piece(RUN, 0, fleet.journal(energy_j=energy_j, seconds=seconds)))
    assert answer.json()["pieces"][0]["ended"], answer.text
    run = fleet.get(f"/api/v1/runs/{RUN}").json()
    assert why in run["quarantine"]
    assert not run["counted"]
    jobs = fleet.get("/api/v1/jobs").json()
    assert (jobs["totals"]["energy_j"], jobs["totals"]["quarantined"]) == (1_000.0, 1)
    assert (jobs["jobs"][0]["energy_j"], jobs["jobs"][0]["complete"]) == (1_000.0, False)
    for page in ("/jobs", "/jobs/slurm:lab:77", f"/runs/{RUN}"):
        assert "uarantined" in fleet.get(page).text, page


def test_a_limit_that_is_made_up_does_not_help(fleet: Fleet) -> None:
    """A node that claims a GPU of a megawatt is checked against known GPUs."""
    end = end_of(energy_j=1e6)
    end["result"]["domains"][0]["tdp_w"] = 1e6
    data = json_frame(HEADER, {"format": 1, **header_of(RUN)}) + json_frame(END, end)
    fleet.deliver(Piece(RUN, 0, data))
    assert "more than 4000 W" in fleet.get(f"/api/v1/runs/{RUN}").json()["quarantine"]


@pytest.mark.parametrize("ahead_s", [180.0, -300.0])
def test_a_clock_that_is_minutes_off_is_corrected_and_said(fleet: Fleet, ahead_s: float) -> None:
    """The start follows the server's clock; the correction is stored and shown."""
    began_s = time.time() - 60
    data = fleet.journal(started_wall_s=began_s + ahead_s)
    fleet.deliver(Piece(RUN, 0, data), ahead_s=ahead_s)
    run = fleet.get(f"/api/v1/runs/{RUN}").json()
    assert run["started_wall_s"] == pytest.approx(began_s, abs=2.0)
    assert run["clock_offset_s"] == pytest.approx(ahead_s, abs=2.0)
    assert run["quarantine"] is None
    assert "corrected" in fleet.get(f"/runs/{RUN}").text
    node = fleet.get("/api/v1/nodes").json()["nodes"][0]
    assert node["clock_offset_s"] == pytest.approx(ahead_s, abs=2.0)


def test_a_clock_that_is_right_is_left_alone(fleet: Fleet) -> None:
    """Moments of transport are not an offset."""
    fleet.deliver(Piece(RUN, 0, fleet.journal()))
    assert fleet.get(f"/api/v1/runs/{RUN}").json()["clock_offset_s"] is None


def test_power_of_the_fleet_is_of_those_who_speak(fleet: Fleet) -> None:
    """A silent node is named, and not added as zero."""
    assert fleet.get("/api/v1/fleet/power").json()["power_w"] is None
    for node, watts in (("n1", 300.0), ("n2", 200.0)):
        said = {"power_w": {"gpu:0": watts, "cpu": 50.0}, "limit_w": {"gpu:0": 400.0}}
        said |= {"jobs": ["77"], "provenance": "measured"}
        fleet.post(f"/api/v1/nodes/{node}/status", node, json.dumps(said))
    power = fleet.get("/api/v1/fleet/power").json()
    assert (power["power_w"], power["limit_w"], power["silent"]) == (600.0, 800.0, [])
    old = {"power_w": {"gpu:0": 300.0}, "read_wall_s": time.time() - 60}
    fleet.post("/api/v1/nodes/n1/status", "n1", json.dumps(old))
    power = fleet.get("/api/v1/fleet/power").json()
    assert (power["power_w"], power["silent"]) == (250.0, ["n1"])
    page = fleet.get("/nodes").text
    assert "silent" in page
    assert "without cpu" in page


def test_a_node_that_is_no_more_is_forgotten(fleet: Fleet) -> None:
    """The server's operator can remove it, the node itself or another one cannot."""
    fleet.deliver()
    for who, status in (("n1", 403), ("writer", 403), ("admin", 200)):
        headers = fleet._as(who)
        assert fleet.client.delete("/api/v1/nodes/n1", headers=headers).status_code == status
    assert fleet.get("/api/v1/nodes").json()["nodes"] == []


def test_what_goes_on_for_no_job_is_not_listed_among_jobs(fleet: Fleet) -> None:
    """Two hundred nodes always have such a run."""
    idle = "20260101-000003-dddddd"
    fleet.deliver(Piece(idle, 0, fleet.journal(idle, kind="unallocated", name="rest")[:900]))
    fleet.deliver(Piece(RUN, 0, fleet.journal(name="a job that goes on")[:900]))
    page = fleet.get("/").text
    assert "a job that goes on" in page
    assert idle not in page


@pytest.mark.parametrize(
    "said",
    [
        *("[]", "nonsense", '{"power_w": {"gpu:0": -1}}', '{"power_w": {"gpu:0": NaN}}'),
        *('{"power_w": {"gpu:0": 1e9}}', '{"jobs": "77"}', '{"wall_s": "now"}', '{"limit_w": 4}'),
        *('{"power_w": {"gpu:0": 1' + "0" * 400 + "}}", '{"jobs":' + "[" * 100_000, "[" * 100_000),
    ],
)
def test_a_status_that_makes_no_sense_is_refused(fleet: Fleet, said: str) -> None:
    """422, and no part of it is shown."""
    assert fleet.post("/api/v1/nodes/n1/status", "n1", said).status_code == 422
    assert fleet.get("/api/v1/fleet/power").json()["power_w"] is None


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{}\n", b'{"wall_s":1,"pieces":[["r",0,9,true,false]]}\nx', b"[" * 100_000),
        b'{"wall_s":1,"pieces":[],"status":{"power_w":{"gpu:0":1' + b"0" * 400 + b"}}}\n",
    ],
)
def test_a_delivery_that_makes_no_sense_is_refused(fleet: Fleet, body: bytes) -> None:
    """422, and the server continues."""
    assert fleet.post("/api/v1/nodes/n1/delivery", "n1", body).status_code == 422


def test_hostile_texts_are_cut_and_shown_as_text(fleet: Fleet) -> None:
    """A user's job may have any name; pages, lists and logs stay valid."""
    long = NASTY + "x" * 100_000
    facts = {"scheduler": "slurm", "job": "78", "cluster": NASTY, "partition": long}
    data = fleet.journal(
        name=long, user=NASTY, tags={long: long, "project": NASTY}, command=[long],
        job={"id": "78", "kind": "slurm", "scheduler": facts},
    )  # fmt: skip
    assert fleet.deliver(Piece(RUN, 0, data)).json()["pieces"][0]["ended"]
    said = {"power_w": {NASTY: 1.0}, "jobs": [NASTY], "faults": [long]}
    fleet.post("/api/v1/nodes/n1/status", "n1", json.dumps(said))
    job = fleet.get("/api/v1/jobs").json()["jobs"][0]
    assert len(job["name"]) == 200
    for page in ("/jobs", f"/runs/{RUN}", f"/jobs/{job['job_key']}", "/nodes"):
        answer = fleet.get(page)
        assert (answer.status_code, NASTY in answer.text) == (200, False), page


@pytest.mark.parametrize(
    "changes",
    [
        {"started_wall_s": "yesterday"},
        {"feeds": [{"meter": "nvml", "domains": [domain(name=7)], "signals": []}]},
        {"feeds": [{"domains": [{}]}]},
        {"tags": ["not", "an", "object"]},
        {"started_wall_s": math.nan},
        {"started_wall_s": 10**400},
    ],
)
def test_a_run_that_cannot_be_understood_is_set_aside_once(
    fleet: Fleet, changes: dict[str, Any]
) -> None:
    """Its node is told so, and does not send it again."""
    data = json_frame(HEADER, {"format": 1, **header_of(RUN), **changes})
    data += json_frame(END, end_of())
    assert fleet.deliver(Piece(RUN, 0, data)).json()["pieces"][0]["refused"]
    assert "refused before" in fleet.deliver(Piece(RUN, 0)).json()["pieces"][0]["refused"]
    assert fleet.get("/").status_code == 200


def test_an_event_that_no_reader_gets_through_holds_up_no_other_run(fleet: Fleet) -> None:
    """With endlessly nested brackets the run ends where they begin, and its node continues."""
    data = json_frame(HEADER, {"format": 1, **header_of(RUN)})
    data += pack_frame(EVENT, b"[" * 100_000) + json_frame(END, end_of())
    other = "20260101-000002-cccccc"
    answer = fleet.deliver(Piece(RUN, 0, data), Piece(other, 0, fleet.journal(other)))
    assert [one["ended"] for one in answer.json()["pieces"]] == [True, True]
    assert fleet.get(f"/api/v1/runs/{RUN}").json()["status"] == "died"


def test_only_agents_speak_for_whole_jobs(fleet: Fleet) -> None:
    """A Slurm job reported by a user's program is shown next to the agents' figures, not in
    them.
    """
    fleet.deliver(Piece(RUN, 0, fleet.journal()))
    mine = "20260101-000002-cccccc"
    data = fleet.journal(mine, host="laptop", energy_j=3_000.0)
    assert fleet.post(f"/api/v1/ingest/{mine}", "writer", data).json()["ended"]
    job = fleet.get("/api/v1/jobs/slurm:lab:77").json()
    assert (job["job"]["energy_j"], job["job"]["runs"]) == (1_000.0, 2)
    assert {run["kind"] for run in job["runs"]} == {"slurm", "command"}


def test_a_writer_touches_no_run_of_a_node(fleet: Fleet) -> None:
    """Neither a growing run, nor one that was closed while its node was silent, nor in its name."""
    data = fleet.journal()
    path = f"/api/v1/ingest/{RUN}"
    fleet.deliver(Piece(RUN, 0, data[:900]))
    assert fleet.post(f"{path}?offset=900&final=true", "writer", b"").status_code == 403
    assert fleet.post(f"{path}?offset=900", "writer", b"x" * 50).status_code == 403
    assert fleet.get(path, "writer").status_code == 403
    state = fleet.client.app.state.wattloop  # type: ignore[attr-defined] # of FastAPI
    assert state.ingest.abandoned(time.time() + 3_600) == [RUN]
    forged = fleet.journal(host="laptop", energy_j=1.0)
    assert fleet.post(path, "writer", forged).status_code == 403
    other = "20260101-000002-cccccc"
    assert fleet.post(f"/api/v1/ingest/{other}", "writer", fleet.journal(other)).status_code == 403
    assert fleet.deliver(Piece(RUN, 0, data)).json()["pieces"][0]["ended"]
    assert fleet.get(f"/api/v1/runs/{RUN}").json()["energy_j"] == 1_000.0


def test_a_writer_goes_on_with_a_run_of_its_own_machine(fleet: Fleet) -> None:
    """This also holds after a silence so long that the run was stored as died."""
    data = fleet.journal(host="laptop")
    path = f"/api/v1/ingest/{RUN}"
    assert fleet.post(path, "writer", data[:900]).json()["offset"] == 900
    assert fleet.post(f"{path}?offset=900", "writer", data[900:950]).json()["offset"] == 950
    state = fleet.client.app.state.wattloop  # type: ignore[attr-defined] # of FastAPI
    assert state.ingest.abandoned(time.time() + 3_600) == [RUN]
    assert fleet.post(path, "writer", data).json()["ended"]
    assert fleet.get(f"/api/v1/runs/{RUN}").json()["status"] == "finished"


def test_a_machine_that_comes_back_after_hours_gives_all_of_its_run(fleet: Fleet) -> None:
    """It was stored as died during the silence; the whole run replaces it."""
    data = fleet.journal()
    fleet.deliver(Piece(RUN, 0, data[:900]))
    state = fleet.client.app.state.wattloop  # type: ignore[attr-defined] # of FastAPI
    assert state.ingest.abandoned(time.time() + 3_600) == [RUN]
    assert fleet.get(f"/api/v1/runs/{RUN}").json()["status"] == "died"
    assert fleet.deliver(Piece(RUN, 0)).json()["pieces"][0] | {"tail": None} == {
        **{"run_id": RUN, "offset": 0, "ended": False, "refused": "", "complete": False},
        "tail": None,
    }
    assert fleet.deliver(Piece(RUN, 0, data)).json()["pieces"][0]["ended"]
    run = fleet.get(f"/api/v1/runs/{RUN}").json()
    assert (run["status"], run["energy_j"]) == ("finished", 1_000.0)
    assert fleet.get("/api/v1/jobs").json()["totals"]["energy_j"] == 1_000.0


def test_a_full_disk_asks_nodes_to_wait(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """503 with the time of the next attempt; no byte is accepted."""
    monkeypatch.setattr("wattloop.store.ingest.spool.ROOM_B", 1e18)
    answer = fleet.deliver(Piece(RUN, 0, fleet.journal()))
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
