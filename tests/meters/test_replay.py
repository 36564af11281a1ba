import io
import json
from pathlib import Path

import pytest

from wattloop.core.clock import VirtualClock
from wattloop.core.errors import ConfigError
from wattloop.core.records import Gap, Provenance
from wattloop.core.settings import Settings
from wattloop.meters.base import Context
from wattloop.meters.replay import detect, record, record_header
from wattloop.testing.meter_contract import check_meter

CSV = """time_s,domain,kind,value
50.0,cpu:0/package,counter,10.0
50.0,gpu:0,gauge,100
51.0,cpu:0/package,counter,30.0
51.0,gpu:0,gauge,
52.0,cpu:0/package,counter,60.0
52.0,gpu:0,gauge,200
"""


def play(path: Path, text: str):
    path.write_text(text)
    clock = VirtualClock(start_s=7.0)
    (meter,) = detect(Context(settings=Settings(replay_file=str(path)), clock=clock))
    return meter, clock


def test_values_hold_until_the_next_and_the_end_is_a_gap(tmp_path) -> None:
    """Promise: a recording plays once, at its own speed, from the first read."""
    meter, clock = play(tmp_path / "r.csv", CSV)
    clock.advance(100)
    assert meter.read() == [10.0, 100.0]
    clock.advance(0.9)
    assert meter.read()[0] == 10.0
    clock.advance(0.2)
    cpu, gpu = meter.read()
    assert cpu == 30.0
    assert gpu == Gap("recorded gap")
    clock.advance(0.9)
    assert meter.read() == [60.0, 200.0]
    clock.advance(0.1)
    assert meter.read()[0] == Gap("recording ended", lost=True)
    assert {d.provenance for d in meter.domains} == {Provenance.REPLAYED}


def test_json_lines_play_the_same(tmp_path) -> None:
    """Promise: both forms of the format have the same meaning."""
    row = {"time_s": 1, "domain": "node", "kind": "gauge", "value": 5}
    meter, _ = play(tmp_path / "r.jsonl", json.dumps(row) + "\n")
    assert meter.read() == [5.0]


def test_a_recording_plays_back_exactly(tmp_path) -> None:
    """Promise: a recording of a meter replays to the same readings, gaps included."""
    meter, clock = play(tmp_path / "a.csv", CSV)
    file = io.StringIO()
    record_header(file)
    seen = []
    for _ in range(3):
        seen.append(meter.read())
        record(file, clock.now_s(), meter.domains, seen[-1])
        clock.advance(1.0)
    again, clock = play(tmp_path / "b.csv", file.getvalue())
    replayed = []
    for _ in range(3):
        replayed.append(again.read())
        clock.advance(1.0)
    assert replayed == seen


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "column time_s is missing"),
        ("time_s,domain,kind,value\n", "no readings"),
        ("time_s,domain,kind,value\n1,node,gauge,x\n", ":2: value is 'x'"),
        ("time_s,domain,kind,value\n1,node,sauce,1\n", ":2: kind is 'sauce'"),
        ("time_s,domain,kind,value\n2,node,gauge,1\n1,node,gauge,1\n", ":3: time 1 s"),
        ("time_s,domain,kind,value\nnan,node,gauge,1\n", "not a finite number"),
        ("time_s,domain,kind,value\n1,n,gauge,1\n2,n,counter,1\n", ":3: n is both"),
        (f'{{"time_s": 1{"0" * 400}, "domain": "n", "kind": "gauge"}}\n', "not a finite number"),
        ('{"time_s": 1}\n', ":1: domain is missing"),
        ('{"time_s": 1\n', ":1: not a JSON object"),
    ],
)
def test_bad_files_are_refused_with_the_line(tmp_path, text, message) -> None:
    """Promise: the error for a broken recording names the line."""
    with pytest.raises(ConfigError, match=message):
        play(tmp_path / "r.csv", text)


def test_contract(tmp_path) -> None:
    """Promise: a recording keeps the contract of every meter."""
    check_meter(lambda: play(tmp_path / "r.csv", CSV)[0])


def test_a_missing_file_is_named(tmp_path) -> None:
    """Promise: the error names the wrong path."""
    settings = Settings(replay_file=str(tmp_path / "no.csv"))
    with pytest.raises(ConfigError, match=r"no\.csv: No such file"):
        detect(Context(settings=settings))
