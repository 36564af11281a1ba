"""Promises of a table of jobs as CSV: it reads back as written."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wattloop.core.errors import ConfigError
from wattloop.schedule.jobs import JobKind, JobTable
from wattloop.schedule.jobs.kind import ServiceLoad
from wattloop.schedule.jobs.table import is_job_table, load_jobs, save_jobs

KINDS = (
    JobKind("hf:google/vit, large", "fp32", (1, 2), (32,), (0.7, 1.0), ("a100",), 512, True),
    JobKind("bert"),
    JobKind("sharded", gpus=(8,), zero=3),
    JobKind("hf:m", parallel="tp=4,pp=2", checkpointing="full", global_batch=64),
    JobKind("hf:m", service=ServiceLoad(0.3, 100, 20, "fp8", 2, 0.05)),
    JobKind("hf:m", service=ServiceLoad(1 / 3)),
)
JOBS = JobTable(
    kinds=KINDS[:3],
    users=("ann", 'b"ob'),
    arrival_s=np.array([0.1, 0.1, 1 / 3]),
    kind=np.array([0, 1, 2]),
    user=np.array([0, 1, 1]),
    work=np.array([1e6, 2.5, 1e-3]),
    deadline_s=np.array([np.inf, 7.25, np.inf]),
    priority=np.array([0, -3, 2]),
    names=("x", "y", "z"),
)


def test_every_kind_is_read_back_as_it_was(tmp_path) -> None:
    """This includes layouts and services; an unknown setting is refused with its line."""
    number = np.arange(len(KINDS))
    none = np.zeros(len(KINDS))
    file = tmp_path / "jobs.csv"
    save_jobs(JobTable(KINDS, ("ann",), none, number, none.astype(int), none + 1, none, none), file)
    assert load_jobs(file).kinds == KINDS
    file.write_text(file.read_text().replace("parallel=", "layout="))
    with pytest.raises(ConfigError, match=r"jobs.csv:5: 'layout' is not one of zero, parallel"):
        load_jobs(file)


def same(one: JobTable, other: JobTable) -> bool:
    columns = ("arrival_s", "kind", "user", "work", "deadline_s", "priority")
    arrays = all(np.array_equal(getattr(one, c), getattr(other, c)) for c in columns)
    return arrays and (one.kinds, one.users, one.names) == (other.kinds, other.users, other.names)


def test_what_is_saved_is_loaded(tmp_path) -> None:
    """To the last bit, with and without names, and with no jobs."""
    file = tmp_path / "jobs.csv"
    for jobs in (JOBS, replace(JOBS, names=())):
        save_jobs(jobs, file)
        assert is_job_table(file) and same(load_jobs(file), jobs)
    none = np.empty(0)
    save_jobs(JobTable((), (), none, none, none, none, none, none), file)
    assert len(load_jobs(file)) == 0


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.lists(
        st.tuples(
            st.floats(0, 1e9), st.sampled_from((0, 1)), st.floats(1e-9, 1e15), st.floats(0, 1e9)
        ),
        min_size=1,
        max_size=5,
    )
)
def test_any_figures_come_back(tmp_path, rows) -> None:
    """Floats are written so that they read the same."""
    arrival_s, kind, work, deadline_s = (np.array(each) for each in zip(*sorted(rows), strict=True))
    first = [*dict.fromkeys(kind.tolist())]
    zero = np.zeros(len(rows), np.int64)
    jobs = JobTable(
        tuple(KINDS[k] for k in first),
        ("u",),
        arrival_s,
        np.array([first.index(k) for k in kind]),
        zero,
        work,
        deadline_s,
        zero,
    )
    save_jobs(jobs, tmp_path / "jobs.csv")
    assert same(load_jobs(tmp_path / "jobs.csv"), jobs)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("1000000.0", "0", ":2: column work: '0' is not a number above 0"),
        ("7.25", "soon", ":3: column deadline_s: 'soon' is not a number"),
        ("1 2", "1,2", ":2: 15 values for 14 columns"),
        ("1 2", "one", ":2: invalid literal"),
        ("arrival_s", "arrival", ":1: the columns are not name, arrival_s"),
    ],
)
def test_faults_of_a_table_are_named_by_line(tmp_path, old, new, said) -> None:
    """People edit these files by hand."""
    file = tmp_path / "jobs.csv"
    save_jobs(JOBS, file)
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(ConfigError) as refused:
        load_jobs(file)
    assert str(refused.value).startswith(f"{file}{said}")


def test_places_that_cannot_be_written_or_read(tmp_path) -> None:
    """The error has the system's reason."""
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        save_jobs(JOBS, tmp_path / "no" / "jobs.csv")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_jobs(tmp_path / "jobs.csv")
    assert not is_job_table(tmp_path / "jobs.csv")
