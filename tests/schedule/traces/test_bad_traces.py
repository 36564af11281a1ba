"""Promises of bad traces: refused with file, line, column and remedy; omissions are counted."""

from pathlib import Path

import numpy as np
import pytest

from wattloop.core.errors import ConfigError
from wattloop.schedule.traces.reader import read_trace
from wattloop.schedule.traces.trace import Trace

HEAD = "arrival_s,gpus,duration_s,user\n"


def read(folder: Path, text: str, **more) -> Trace:
    file = folder / "t.csv"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_trace(file, **more)


def refusal(folder: Path, text, **more) -> str:
    with pytest.raises(ConfigError) as refused:
        read(folder, text, **more)
    said = str(refused.value)
    assert said.startswith(f"{folder}/t.csv"), said
    return said.removeprefix(f"{folder}/t.csv")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("1,1,-5,u", ":3: column duration_s: '-5' is negative"),
        ("1,1,nan,u", ":3: column duration_s: 'nan' is not a number"),
        ("1,1,inf,u", ":3: column duration_s: 'inf' is not a number"),
        ("1,1,,u", ":3: column duration_s: is empty"),
        (" ,1,5,u", ":3: column arrival_s: is empty"),
        ("noon,1,5,u", ":3: column arrival_s: 'noon' is not a number"),
        ("1,-2,5,u", ":3: column gpus: '-2' is negative"),
        ("1,1e9,5,u", ":3: column gpus: '1e9' is more than 1e+06"),
        ("1,many,5,u", ":3: column gpus: 'many' is not a number"),
        ("1,1,1e12,u", ":3: column duration_s: '1e12' makes more than 300 years; is the unit"),
        ("1,1,5", ":3: 3 values for 4 columns"),
        ("1,1,5,u,x", ":3: 5 values for 4 columns"),
    ],
)
def test_a_wrong_row_is_refused_by_line_and_column_or_left_out_and_counted(
    tmp_path, row, said
) -> None:
    """Both on request; the valid rows around it stay."""
    text = f"{HEAD}0,1,5,u\n{row}\n2,1,5,u\n"
    message = refusal(tmp_path, text)
    assert message.startswith(said) and "(jobs.trace.unusable=leave_out)" in message
    trace = read(tmp_path, text, unusable="leave_out")
    assert trace.arrival_s.tolist() == [0, 2]
    assert "2 jobs of 3 rows" in trace.notes[0] and trace.notes[1].startswith("left out: 1 with ")


@pytest.mark.parametrize(
    ("name", "cell", "said"),
    [
        ("steps", "0", "column steps: '0' is 0 or less"),
        ("steps", "1e300", "column steps: '1e300' is more than 1e+15"),
        ("batch", "-4", "column batch: '-4' is 0 or less"),
        ("priority", "-1e18", "column priority: '-1e18' is more than 1e+15"),
        ("deadline", "soon", "column deadline: 'soon' is not a number"),
    ],
)
def test_values_that_need_not_be_there_must_be_right(tmp_path, name, cell, said) -> None:
    """A job of zero steps would be done before it begins."""
    text = f"arrival,gpus,duration,{name}\n0,1,5,{cell}\n1,1,5,\n"
    assert refusal(tmp_path, text).startswith(f":2: {said}")
    trace = read(tmp_path, text, unusable="leave_out")
    assert len(trace) == 1 and trace.samples is trace.batch is trace.priority is None


def test_numbers_of_four_hundred_digits_are_none(tmp_path) -> None:
    """They are valid neither as days nor as GPUs nor in a first row without names."""
    days = f"Submit|Elapsed|AllocTRES\n2024-01-05|{'9' * 400}-00:00:01|gres/gpu=1\n"
    assert ":2: column Elapsed" in refusal(tmp_path, days)
    cards = f"Submit|Elapsed|AllocTRES\n2024-01-05|00:01|gres/gpu={'9' * 400}\n"
    assert ":2: column AllocTRES" in refusal(tmp_path, cards)


def test_a_column_that_is_empty_throughout_is_none(tmp_path) -> None:
    """Its values are then drawn, as if the column were missing."""
    trace = read(tmp_path, "arrival,gpus,duration,user,deadline\n0,1,5,,\n1,1,5,,\n")
    assert trace.user is None and trace.deadline_s is None


def test_missing_columns_are_named_with_those_found_and_expected(tmp_path) -> None:
    """The user can then map them."""
    said = refusal(tmp_path, "when,gpus,length\n0,1,5\n")
    assert said.startswith(":1: no column for arrival (expected as arrival_s or arrival or")
    assert "and duration (expected as duration_s" in said
    assert (
        "the file has when, gpus, length. Say which it is (jobs.trace.columns.arrival=COLUMN)"
        in said
    )
    assert "philly" in said
    said = refusal(tmp_path, "Submit|Elapsed|User\nx|y|z\n", form="sacct")
    assert said.startswith(
        ":1: format sacct: no column for gpus (expected as AllocTRES or ReqTRES)"
    )
    assert "the file has Submit, Elapsed, User" in said


def test_columns_can_be_mapped_with_their_units(tmp_path) -> None:
    """`--column arrival=when:ms`; the others are found by their names."""
    text = "when,gpus,length,user\n1000,1,5,u\n3500,2,6,u\n"
    trace = read(tmp_path, text, columns={"arrival": "when:ms", "duration": "length:min"})
    assert trace.arrival_s.tolist() == [0, 2.5] and trace.duration_s.tolist() == [300, 360]
    assert trace.user.values == ("u",)


def test_a_column_named_otherwise_has_its_usual_unit(tmp_path) -> None:
    """Slurm's elapsed time is a clock time; a column of the user's own is in seconds."""
    text = "Submit|secs|AllocTRES\n2024-01-05T10:00:00|90|gres/gpu=1\n"
    trace = read(tmp_path, text, form="sacct", columns={"duration": "secs"})
    assert trace.duration_s.tolist() == [90]
    clock = read(tmp_path, text.replace("secs", "Elapsed").replace("|90|", "|01:30|"))
    assert clock.duration_s.tolist() == [90]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"arival": "when"}, "column arival=when: unknown field; did you mean 'arrival'?"),
        ({"model": "net"}, "model=net: there is no such column; the file has arrival_s, gpus,"),
    ],
)
def test_a_mapping_to_nothing_is_refused(tmp_path, columns, said) -> None:
    """A typing error in fields and columns."""
    (tmp_path / "t.csv").write_text(HEAD + "0,1,5,u\n")
    with pytest.raises(ConfigError) as refused:
        read_trace(tmp_path / "t.csv", columns=columns)
    assert said in str(refused.value)


def test_unsorted_arrivals_are_sorted_and_said(tmp_path) -> None:
    """Traces may be unsorted; rows of one moment stay in their order."""
    trace = read(tmp_path, "arrival_s,gpus,duration_s,name\n9,1,1,a\n5,2,2,b\n9,3,3,c\n7,4,4,d\n")
    assert trace.arrival_s.tolist() == [0, 2, 4, 4] and trace.names == ("b", "d", "a", "c")
    assert trace.gpus.tolist() == [2, 4, 1, 3]
    assert "sorted by arrival; rows that came after later ones: 2" in trace.notes


def test_jobs_without_gpus_and_of_no_length_are_counted(tmp_path) -> None:
    """CPU jobs are not scheduled, but the reader is told how many there were."""
    trace = read(tmp_path, HEAD + "0,0,5,u\n1,1,0,u\n2,0,0,v\n3,1,1,u\n")
    assert trace.notes[1] == "left out: 2 with no GPU, 1 with a duration of 0"
    assert trace.user.values == ("u",) and trace.arrival_s.tolist() == [0]
    said = refusal(tmp_path, HEAD + "0,0,5,u\n")
    assert said == ": no job in 1 rows below the names: left out 1 with no GPU"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", ": empty; the first line holds the names of the columns"),
        ("\n\n", ": empty"),
        (HEAD, ": no job in 0 rows below the names"),
        (b"\x7fELF\0\0\0" * 100, ": cannot be read: not text, but a binary file"),
        (HEAD.encode() + b"0,1,5,\xff\xfe\n", ": cannot be read: not text in UTF-8"),
        (b"\x1f\x8bnot really gzip", ": cannot be read: "),
        ("[1, 2", ": not valid JSON"),
        ('[{"jobid": 3}]', ": job 0 is not one of Philly's cluster_job_log: 'attempts' is missing"),
        (HEAD + "0,1,5," + "x" * 200_000 + "\n", ":2: not a CSV file: field larger than"),
        (HEAD + "0,1,5,u\n1e14,1,5,u\n", ": from the first arrival to the last pass 3168809 years"),
    ],
)
def test_files_that_are_no_traces(tmp_path, content, said) -> None:
    """Empty, binary, broken, or in another unit."""
    assert refusal(tmp_path, content).startswith(said)


def test_missing_files_folders_and_formats(tmp_path) -> None:
    """The error has the system's reason, and near names."""
    with pytest.raises(ConfigError, match=r"no\.csv: cannot be read: No such file"):
        read_trace(tmp_path / "no.csv")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_trace(tmp_path)
    (tmp_path / "t.csv").write_text(HEAD + "0,1,5,u\n")
    with pytest.raises(ConfigError, match="trace format 'filly' is unknown; did you mean 'philly'"):
        read_trace(tmp_path / "t.csv", form="filly")
    with pytest.raises(ConfigError, match="unusable: must be refuse or leave_out"):
        read_trace(tmp_path / "t.csv", unusable="drop")


def test_lines_are_counted_rightly_beyond_the_first_piece(tmp_path) -> None:
    """A wrong value in the 45,000th row, after blank lines."""
    rows = "".join(f"{n},1,5,u\n" for n in range(45_000))
    said = refusal(tmp_path, HEAD + rows + "\n\n45000,1,x,u\n")
    assert said.startswith(":45004: column duration_s: 'x' is not a number")


def test_line_breaks_in_values_are_said_as_rows(tmp_path) -> None:
    """Without a line number there is at least no wrong one."""
    said = refusal(tmp_path, HEAD + '0,1,5,"two\nlines"\n1,1,x,u\n')
    assert said.startswith(", row 3: column duration_s: 'x'")


def test_jobs_larger_than_any_cluster_are_kept(tmp_path) -> None:
    """Whether they can run is decided and reported later."""
    assert read(tmp_path, HEAD + "0,4096,5,u\n").gpus.tolist() == [4096]


def test_very_many_jobs_have_no_names(tmp_path, monkeypatch) -> None:
    """Names would take much memory, and a note says that they are left out."""
    monkeypatch.setattr("wattloop.schedule.traces.reader.MOST_NAMED", 2)
    trace = read(tmp_path, "job,arrival,gpus,duration\na,0,1,1\nb,1,1,1\nc,2,1,1\n")
    assert not trace.names and any("names of jobs are not kept" in note for note in trace.notes)


def test_progress_is_told_as_a_share(tmp_path) -> None:
    """It rises to 1 and never falls."""
    told: list[float] = []
    rows = "".join(f"{n},1,5,u\n" for n in range(50_000))
    read(tmp_path, HEAD + rows, progress=told.append)
    assert len(told) == 3 and told[-1] == 1 and np.all(np.diff(told) >= 0)
