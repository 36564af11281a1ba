"""Promises of traces of any content: the same jobs, or a clear refusal."""

import csv
import io
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from wattloop.core.errors import ConfigError
from wattloop.schedule.traces.reader import read_trace

QUICK = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # each example writes its file
)
TIMES = st.floats(0, 1e8)
NAMES = st.text(st.sampled_from("ab ,;|\"'\n\tü𝄞"), max_size=4)
JOBS = st.lists(
    st.tuples(TIMES, st.integers(1, 4096), st.floats(1e-3, 1e7), NAMES),
    min_size=1,
    max_size=6,
)
CELLS = st.one_of(
    st.sampled_from(["", "nan", "inf", "-1", "0", "1e400", "x", "2024-01-01", '"', "1_0", "٣"]),
    st.floats().map(str),
    st.text(max_size=5),
)


def written(folder: Path, header: tuple[str, ...], rows, separator: str = ",") -> Path:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator)
    writer.writerow(header)
    writer.writerows(rows)
    file = folder / "t.csv"
    file.write_bytes(text.getvalue().encode("utf-8", "surrogatepass"))
    return file


@QUICK
@given(jobs=JOBS, separator=st.sampled_from(",;"))
def test_what_is_written_is_read(tmp_path, jobs, separator) -> None:
    """Sorted, counted from the first, users with any letters in their names."""
    file = written(tmp_path, ("arrival", "gpus", "duration", "user"), jobs, separator)
    trace = read_trace(file)
    jobs = sorted(jobs, key=lambda job: job[0])
    assert trace.arrival_s.tolist() == [job[0] - jobs[0][0] for job in jobs]
    assert trace.gpus.tolist() == [job[1] for job in jobs]
    assert trace.duration_s.tolist() == [job[2] for job in jobs]
    written_users = [job[3].strip() for job in jobs]
    codes = [-1] * len(jobs) if trace.user is None else trace.user.codes.tolist()
    assert [trace.user.values[c] if c >= 0 else "" for c in codes] == written_users
    assert not any("left out" in note for note in trace.notes)


@QUICK
@given(rows=st.lists(st.lists(CELLS, min_size=3, max_size=5), max_size=6))
@example(rows=[["-1", "1.6e-267", "10", ""]])  # part of a GPU, however small, is one
def test_no_row_is_lost_in_silence(tmp_path, rows) -> None:
    """Rows = jobs + omitted ones in the notes; values are always usable."""
    file = written(tmp_path, ("arrival", "gpus", "duration", "deadline"), rows)
    try:
        trace = read_trace(file, unusable="leave_out")
    except ConfigError as error:
        assert str(error).startswith(str(file))
        return
    assert np.isfinite(trace.arrival_s).all() and (trace.gpus >= 1).all()
    assert (trace.duration_s > 0).all() and (np.diff(trace.arrival_s) >= 0).all()
    left_out = next((note for note in trace.notes if note.startswith("left out: ")), "left out: ")
    counts = [int(part.split(" with ")[0]) for part in left_out[10:].split(", ") if part]
    assert f": {len(trace)} jobs of {len(trace) + sum(counts)} rows" in trace.notes[0]


@QUICK
@given(content=st.binary(max_size=300))
def test_any_bytes_are_a_trace_or_a_refusal(tmp_path, content) -> None:
    """There is never another error."""
    (tmp_path / "t.csv").write_bytes(content)
    try:
        read_trace(tmp_path / "t.csv")
    except ConfigError as error:
        assert str(error).startswith(str(tmp_path))
