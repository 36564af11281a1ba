"""Promises under any journal: no page fails, no other run waits for it, and a restart works.

A node's or a writer's token may send any bytes. Journals here are changed at random places by a
seeded generator: WATTLOOP_FUZZ_JOURNALS=1000 tries more of them than the usual test run does.
"""

import json
import math
import os
import random
import time
from array import array
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed")

from fastapi.testclient import TestClient

from tests.fleet.delivery.served import domain, end_of, header_of
from wattloop.core.results import WindowResult
from wattloop.measure.live import FollowedJournals
from wattloop.serve.api.live import _rows
from wattloop.serve.app import create_app
from wattloop.serve.options import ServeOptions
from wattloop.store.ingest.uploads import STALE_S
from wattloop.store.journal import (
    END,
    EVENT,
    HEADER,
    SAMPLES,
    JournalTail,
    json_frame,
    pack_frame,
    samples_frame,
)
from wattloop.store.runs import live_journal

JOURNALS = int(os.environ.get("WATTLOOP_FUZZ_JOURNALS", "60"))
TOKEN = {"Authorization": "Bearer secret"}
ODD = (
    *(None, True, "x", "", "\x1b[31m\x07", "\0", "a" * 5_000, "=1+1", 0, -1, 2**70, 1e308),
    *(float("nan"), float("inf"), -1e9, [], {}, [[]], [None], {"x": 1}, [1], "2026-01-01"),
)
GOOD = "20260101-000000-000000"


def _frames(run_id: str) -> list[tuple[bytes, Any]]:
    """Return a journal with every kind of frame, as (kind, JSON)."""
    header = header_of(
        run_id,
        host="far",
        command=["python", "train.py"],
        format=1,
        tags={"project": "vision"},
        settings={"devices": [], "pue": 1.2, "zone": "FRA"},
        missing=[{"name": "dram", "reason": "no sensor", "remedy": "none"}],
        feeds=[
            {
                "meter": "nvml",
                "domains": [domain(device="NVIDIA A100-SXM4-40GB"), domain(name="gpu:1")],
                "signals": [{"name": "gpu:0/utilisation", "unit": "fraction"}],
            }
        ],
    )
    window = WindowResult("epoch", 1, 0, 101.0, 104.0).to_dict()
    return [
        (HEADER, header),
        (EVENT, {"type": "role", "counts": True, "counts_from_s": 100.0, "counted_by": None}),
        (EVENT, {"type": "window", "window": window}),
        (EVENT, {"type": "feeds", "first": 1, "feeds": [{"meter": "late", "domains": []}]}),
        (EVENT, {"type": "step", "index": 3, "time_s": 102.0, "loss": 0.5}),
        (EVENT, {"type": "lever", "lever": "gpu:0/power_limit", "value": 200.0, "time_s": 101.0}),
        (END, end_of(accounting=ACCOUNTING)),
    ]


ACCOUNTING: dict[str, Any] = {
    "labels": {"node": "low"},
    "insights": [{"code": "low_efficiency", "severity": "warning", "text": "low"}],
    "efficiencies": [
        {
            **{"name": "gpu", "value": 0.5, "power_w": 100.0, "tdp_w": 400.0, "label": "medium"},
            **{"basis": "TDP", "provenance": "measured"},
        }
    ],
    "facility": {"energy_j": 1_200.0, "pue": 1.2, "note": ""},
    "carbon_g": 0.02,
}


def _places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(data, dict | list):
        items = data.items() if isinstance(data, dict) else enumerate(data)
        for key, value in items:
            yield (*path, key)
            yield from _places(value, (*path, key))


def _changed(data: Any, chance: random.Random) -> Any:
    """Return the frames with one or two values of another kind, or missing."""
    data = json.loads(json.dumps(data))
    for _ in range(chance.choice((1, 1, 2))):
        places = list(_places(data))
        if not places:
            return data
        *way, last = chance.choice(places)
        place = data
        for key in way:
            place = place[key]
        if isinstance(place, dict) and chance.random() < 0.2:
            del place[last]
        else:
            place[last] = deepcopy(chance.choice(ODD))
    return data


def _journal(run_id: str, number: int) -> bytes:
    """Return journal `number`, which is always the same bytes."""
    chance = random.Random(number)
    frames = _frames(run_id)
    if chance.random() < 0.5:
        del frames[-1]  # the server has to close it
    if chance.random() < 0.1:
        chance.shuffle(frames)
    at = chance.randrange(len(frames))
    if chance.random() < 0.5:
        at = 0
    kind, data = frames[at]
    frames[at] = (
        kind,
        deepcopy(chance.choice(ODD)) if chance.random() < 0.05 else _changed(data, chance),
    )
    if at == 0 and isinstance(frames[0][1], dict):
        frames[0][1]["run_id"] = run_id  # another one is refused at once
    parts = [json_frame(kind, data) for kind, data in frames]
    parts.insert(1, _samples(chance))
    return b"".join(parts)


def _samples(chance: random.Random) -> bytes:
    times_s = array("d", [100.0 + n for n in range(10)])
    if chance.random() < 0.1:
        times_s[5] = chance.choice((float("nan"), float("inf"), -1e300, 1e300))
    width = 2 if chance.random() < 0.9 else chance.choice((0, 1, 3))
    values = array("d", [100.0 + n for n in range(20)])
    if chance.random() < 0.1:
        values[3] = chance.choice((float("nan"), float("inf"), -1e300, 1e300))
    feed = 0 if chance.random() < 0.9 else chance.choice((1, 7, 1000, 65_535))
    return samples_frame(feed, width, times_s, values)


def _send(client: TestClient, run_id: str, data: bytes, *, final: bool) -> int:
    where = f"/api/v1/ingest/{run_id}?offset=0&final={'1' if final else '0'}"
    return int(client.post(where, content=data, headers=TOKEN).status_code)


def _own(run_id: str) -> list[str]:
    api = f"/api/v1/runs/{run_id}"
    return [
        *(f"/runs/{run_id}", api, f"{api}/curves", f"{api}/curves?signals=1", f"{api}/advice"),
        *(f"{api}/download?what=samples&format=csv", f"{api}/download?what=windows&format=json"),
        *(f"{api}/download?what=steps&format=json", f"{api}/download?what=runs&format=csv"),
        *(f"/compare?run={run_id}&run={GOOD}", f"/jobs/{run_id}", f"/api/v1/jobs/{run_id}"),
    ]


ALL = ("/", "/nodes", "/api/v1/nodes", "/api/v1/jobs", "/api/v1/jobs/slopes", "/metrics")


def _failing(client: TestClient, routes: Any) -> list[str]:
    return [path for path in routes if client.get(path).status_code >= 500]


def _app(folder: Path) -> Any:
    return create_app(ServeOptions(store=str(folder / "runs.db"), token="secret"))


def test_no_journal_breaks_a_page(tmp_path: Path) -> None:
    """This covers its own page and all others, while it arrives and when it is stored."""
    failing: dict[str, list[str]] = {}
    numbers = (*range(JOURNALS), 486, 917)  # the last two once broke a page
    with TestClient(_app(tmp_path), raise_server_exceptions=False) as client:
        good = b"".join(json_frame(kind, data) for kind, data in _frames(GOOD))
        assert _send(client, GOOD, good, final=True) == 200
        for number in numbers:
            run_id = f"20260102-000000-{number:06d}"
            data = _journal(run_id, number)
            status = _send(client, run_id, data, final=False)
            found = _failing(client, (*_own(run_id), "/"))
            again = client.post(
                f"/api/v1/ingest/{run_id}?offset={len(data)}&final=1", content=b"", headers=TOKEN
            )
            found += _failing(client, _own(run_id))
            if status >= 500 or again.status_code >= 500:
                found.append(f"ingest: {status}, {again.status_code}: {again.text}")
            if found:
                failing[str(number)] = found
        failing |= {"all": found} if (found := _failing(client, ALL)) else {}
    assert not failing


@pytest.mark.parametrize("odd", ["x", [1], {"a": 1}, None, True, 10**30, -5])
def test_silent_runs_are_closed_whatever_arrived_before_them(tmp_path: Path, odd: Any) -> None:
    """One with an odd format comes first in the folder, and the others are closed all the same."""
    with TestClient(_app(tmp_path), raise_server_exceptions=False) as client:
        bad = json_frame(HEADER, {**header_of("20260101-aaa", host="far"), "format": odd})
        good = json_frame(HEADER, header_of("20260101-bbb", host="far"))
        _send(client, "20260101-aaa", bad + _samples(random.Random(0)), final=False)
        assert _send(client, "20260101-bbb", good, final=False) == 200
    folder = tmp_path / "runs.db.journals"
    # as an earlier release accepted it
    (folder / "incoming" / "20260101-000.part").write_bytes(
        json_frame(HEADER, {**header_of("20260101-000", host="far"), "format": odd})
    )
    (folder / "20260101-001.journal").write_bytes(
        json_frame(HEADER, {**header_of("20260101-001", host="far"), "format": odd})
    )
    with TestClient(_app(tmp_path), raise_server_exceptions=False) as client:
        client.app.state.wattloop.ingest.abandoned(time.time() + 2 * STALE_S)  # type: ignore[attr-defined] # a FastAPI
        assert not _failing(client, ALL)
        assert client.get("/api/v1/runs/20260101-bbb").json()["status"] == "died"
        if odd in ("x", [1], {"a": 1}):
            said = client.get("/api/v1/nodes").json()["refused_journals"]
            refused = {one["run_id"]: one["reason"] for one in said}
            assert "format" in refused["20260101-000"]
            assert "20260101-000" in client.get("/nodes").text


WHOLE = {
    "a block without its beginning": pack_frame(SAMPLES, b"abc"),
    "a block that is cut": pack_frame(SAMPLES, bytes(range(40))),
    "not JSON": pack_frame(EVENT, b'{"a":'),
    "deep JSON": pack_frame(EVENT, b"[" * 100_000),
    "fewer columns": samples_frame(0, 1, array("d", [101.0]), array("d", [5.0])),
    "no columns": samples_frame(0, 0, array("d", [101.0]), array("d")),
    "infinite": samples_frame(0, 2, array("d", [101.0]), array("d", [math.inf, 1e308])),
    "at no time": samples_frame(0, 2, array("d", [math.inf]), array("d", [1.0, 1.0])),
}


@pytest.mark.parametrize("frame", WHOLE.values(), ids=WHOLE)
def test_a_live_run_of_senseless_frames_breaks_no_page_and_no_stream(
    tmp_path: Path, frame: bytes
) -> None:
    """Checksums are right, so the frames are whole; readers follow the run while it arrives."""
    run_id = "20260103-000000-aaa"
    sound = samples_frame(0, 2, array("d", [100.0]), array("d", [300.0, 200.0]))
    kind, header = _frames(run_id)[0]
    data = json_frame(kind, header) + sound + frame
    app = _app(tmp_path)
    with TestClient(app, raise_server_exceptions=False) as client:
        assert _send(client, run_id, data, final=False) == 200
        for _ in range(2):  # the first read may still be in progress when it is answered
            assert not _failing(client, ("/api/v1/runs/live", f"/runs/{run_id}", "/"))
            time.sleep(FollowedJournals.EVERY_S)
        found = live_journal(app.state.wattloop.store, run_id)
        assert found is not None
        tail = JournalTail(found[1])
        blocks = [body for kind, body in tail.poll() if kind == SAMPLES]
        rows = [row for block in blocks for row in (*_rows(block, found[0], {}),)]
        assert rows[0]["power_w"] == 300.0
        json.dumps(rows, allow_nan=False)  # a browser accepts no other JSON
        tail.close()


def test_a_journal_that_cannot_be_stored_is_named_with_its_reason(tmp_path: Path) -> None:
    """The Nodes page names it, also after a restart; sent again, it is refused with the reason."""
    run_id = "20260101-aaa"
    with TestClient(_app(tmp_path), raise_server_exceptions=False) as client:
        data = json_frame(HEADER, header_of(run_id, host="far"))
        assert _send(client, run_id, data, final=False) == 200
        twice = json_frame(HEADER, header_of("20260101-other", host="far"))
        path = f"/api/v1/ingest/{run_id}?offset={len(data)}&final=1"
        assert client.post(path, content=twice, headers=TOKEN).status_code == 422
        assert _send(client, run_id, data, final=True) == 422
    with TestClient(_app(tmp_path)) as client:
        (one,) = client.get("/api/v1/nodes").json()["refused_journals"]
        assert (one["run_id"], one["reason"]) == (run_id, f"{run_id}: calls itself another run")
        assert abs(one["refused_wall_s"] - time.time()) < 3_600
        page = client.get("/nodes").text
        assert run_id in page and "calls itself another run" in page
