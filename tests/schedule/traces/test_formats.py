"""Promises of shipped formats: each is recognised by its columns, with its makers' meaning."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from wattloop.schedule.traces.formats import known_formats
from wattloop.schedule.traces.reader import read_trace
from wattloop.schedule.traces.trace import Trace

PHILLY = "arrival_s,gpus,duration_s,vc\n0,8,2240194,7f04ca\n60,1,30,6214e9\n"
ITP = "job_id,submission_time,duration,num_gpu\na,16566,3890,4\nb,16570,10,1\n"
ELASTICFLOW = (
    "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\n"
    "a,16566,40285,bert,21347,64,4,3890\n"
)
PAI = (
    "j1,tensorflow,1.0,Terminated,1739162.0,1739200.0,600.0,29.3,50.0,MISC\n"
    "j2,worker,4.0,Failed,1739172.0,1739372.0,600.0,29.3,100.0,V100\n"
    "j2,ps,2.0,Terminated,1739172.0,1739372.0,600.0,29.3,,\n"
    "j3,worker,1.0,Running,1739180.0,,600.0,29.3,100.0,T4\n"
    "j4,worker,1.0,Failed,,1739372.0,600.0,29.3,100.0,T4\n"
)
GAVEL_TEN = (
    'LM (batch size 10)\t"cd x && python main.py\ty\t--steps\t1\t500\t2\t1\t-1.0\t30.0\n'
    "CycleGAN\tpython c.py\td\t--n\t1\t70\t1\t1\t-1.0\t31.5\n"
)
GAVEL_SEVEN = "ResNet-18 (batch size 32)\tcd x && python main.py\t--num_steps\t1\t1104675\t6.0\t4\n"
SACCT = (
    "JobID|User|State|Submit|Start|End|Elapsed|AllocTRES\n"
    "10|ann|COMPLETED|2024-01-05T10:00:00|x|x|1-02:03:04|billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2\n"
    "10.batch||COMPLETED|2024-01-05T10:00:00|x|x|1-02:03:04|cpu=8,gres/gpu=2\n"
    "11|bob|CANCELLED by 1000|2024-01-05T10:00:30|x|Unknown|00:00:00|\n"
    "12|bob|FAILED|2024-01-05T10:01:00|x|x|02:03|cpu=1,gres/gpu:h100=1,gres/gpu:a100=3\n"
    "13|bob|RUNNING|2024-01-05T10:02:00|x|Unknown|05:00|gres/gpu=1\n"
    "14|cat|COMPLETED|2024-01-05T10:03:00|x|x|05:00|cpu=64,mem=1G\n"
)
ACME = (
    "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue\n"
    "1,u5,1,8,128,Other,FAILED,2023-03-01 00:18:22+08:00,2023-03-01 00:18:54+08:00,,117,32\n"
    "2,u6,1,0,8,Other,COMPLETED,2023-03-01 00:18:23+08:00,2023-03-01 00:18:54+08:00,,117,32\n"
    "3,u6,1,1,8,Other,COMPLETED,2023-02-28 16:18:24+00:00,2023-03-01 00:18:54+08:00,,7,32\n"
)


def read(folder: Path, text: str, **more) -> Trace:
    file = folder / "trace.csv"
    file.write_text(text)
    return read_trace(file, **more)


def test_philly(tmp_path) -> None:
    """Virtual clusters are users."""
    trace = read(tmp_path, PHILLY)
    assert trace.arrival_s.tolist() == [0, 60] and trace.gpus.tolist() == [8, 1]
    assert trace.duration_s.tolist() == [2240194, 30]
    assert trace.user.values == ("7f04ca", "6214e9") and trace.user.codes.tolist() == [0, 1]
    assert trace.model is None and trace.deadline_s is None and not trace.names
    assert trace.notes == (
        f"{tmp_path}/trace.csv: 2 jobs of 2 rows over 1 min 00 s, read as philly",
    )


def test_itp(tmp_path) -> None:
    """Times count from the first arrival."""
    trace = read(tmp_path, ITP)
    assert trace.arrival_s.tolist() == [0, 4] and trace.names == ("a", "b")
    assert "read as itp" in trace.notes[0]


@pytest.mark.parametrize("renamed", [False, True])
def test_itp_with_the_models_of_elasticflow(tmp_path, renamed) -> None:
    """Batches are of all GPUs together; deadlines move with the arrivals; two spellings."""
    text = ELASTICFLOW
    if renamed:
        for ours, theirs in (("submission", "submit"), ("num_iter", "iter"), ("deadline", "ddl")):
            text = text.replace(ours, theirs)
    trace = read(tmp_path, text)
    assert trace.model.values == ("bert",) and trace.batch.tolist() == [16]
    assert trace.samples.tolist() == [40285 * 64] and trace.deadline_s.tolist() == [21347 - 16566]


def test_alibaba_pai_has_no_line_of_names(tmp_path) -> None:
    """Parts of GPUs are rounded up; CPU tasks and unfinished ones are counted in a note."""
    trace = read(tmp_path, PAI)
    assert trace.gpus.tolist() == [1, 4] and trace.duration_s.tolist() == [38, 200]
    assert trace.arrival_s.tolist() == [0, 10] and trace.gpu_type.values == ("MISC", "V100")
    assert "2 jobs of 5 rows" in trace.notes[0]
    said = "left out: 1 with status Running, 1 with no GPU, 1 with start_time that is empty"
    assert sorted(trace.notes[1].split(", ")) == sorted(said.split(", "))
    assert "1 jobs asked for parts of a GPU, rounded up" in trace.notes[2]


def test_alibaba_pai_with_names_and_users(tmp_path) -> None:
    """The same table has a first line, as after a join."""
    names = (
        "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type"
    )
    lines = [line + ",u1" for line in PAI.splitlines()]
    trace = read(tmp_path, "\n".join([names + ",user", *lines]))
    assert trace.gpus.tolist() == [1, 4] and trace.user.values == ("u1",)


@pytest.mark.parametrize("text", [GAVEL_TEN, GAVEL_SEVEN])
def test_gavel_has_models_batches_and_steps_but_no_durations(tmp_path, text) -> None:
    """Steps count over all workers; quotes in commands are not quotes of CSV."""
    trace = read(tmp_path, text)
    assert np.isnan(trace.duration_s).all()
    if text is GAVEL_TEN:
        assert trace.model.values == ("LM", "CycleGAN") and trace.gpus.tolist() == [2, 1]
        assert trace.samples.tolist() == [5_000, 70] and trace.arrival_s.tolist() == [0, 1.5]
        assert "1 jobs without a batch: a step counts as one sample" in trace.notes
    else:
        assert trace.model.values == ("ResNet-18",) and trace.gpus.tolist() == [4]
        assert trace.samples.tolist() == [1104675 * 32] and trace.batch.tolist() == [32]


def test_slurm_accounting(tmp_path) -> None:
    """Steps, and jobs that never ran, still run or have no GPU, are counted; times are
    D-HH:MM:SS.
    """
    trace = read(tmp_path, SACCT)
    assert trace.names == ("10", "12") and trace.arrival_s.tolist() == [0, 60]
    assert trace.duration_s.tolist() == [86_400 + 7_384, 123] and trace.gpus.tolist() == [2, 4]
    assert trace.user.values == ("ann", "bob")
    assert [trace.gpu_type.values[code] for code in trace.gpu_type.codes] == ["a100", "h100"]
    assert "2 jobs of 6 rows" in trace.notes[0]
    for reason in ("1 with JobID like *.*", "1 with State RUNNING", "2 with no GPU"):
        assert reason in trace.notes[1]


def test_slurm_accounting_by_start_and_end(tmp_path) -> None:
    """Without Elapsed, End - Start; and with another separator."""
    text = (
        "JobID,Submit,Start,End,ReqTRES\n"
        '7,2024-01-05T10:00:00,2024-01-05T11:00:00,2024-01-05T11:00:09,"cpu=1,gres/gpu=3"\n'
    )
    trace = read(tmp_path, text)
    assert trace.duration_s.tolist() == [9] and trace.gpus.tolist() == [3]


def test_acme_and_helios(tmp_path) -> None:
    """Dates have zones; jobs without GPUs are counted."""
    trace = read(tmp_path, ACME)
    assert trace.arrival_s.tolist() == [0, 2] and trace.duration_s.tolist() == [117, 7]
    assert "read as acme" in trace.notes[0] and trace.notes[1] == "left out: 1 with no GPU"


def test_a_plain_table(tmp_path) -> None:
    """Common names in any case; tabs; priorities and empty optional values."""
    text = "Submit_Time\tRuntime\tNum_GPUs\tOwner\tpriority\tdeadline\n"
    text += "5\t10\t2\tann\t3\t\n6\t1\t1\t\t\t9\n"
    trace = read(tmp_path, text)
    assert trace.gpus.tolist() == [2, 1] and "read as plain" in trace.notes[0]
    assert trace.user.codes.tolist() == [0, -1]
    assert trace.priority[0] == 3 and np.isnan(trace.priority[1])
    assert np.isnan(trace.deadline_s[0]) and trace.deadline_s[1] == 4


def test_philly_s_own_log(tmp_path) -> None:
    """JSON with attempts: their times are added, their GPUs are the last one's."""
    attempt = {
        "start_time": "2017-10-07 01:12:09",
        "end_time": "2017-10-07 01:13:09",
        "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu0"]}],
    }
    earlier = {**attempt, "detail": [{"ip": "m1", "gpus": ["gpu0"]}]}
    job = {"status": "Pass", "vc": "v", "jobid": "a", "user": "u", "attempts": [earlier, attempt]}
    log = [
        {**job, "submitted_time": "2017-10-07 01:11:39"},
        {**job, "submitted_time": "2017-10-07 01:11:49", "attempts": []},
        {
            **job,
            "submitted_time": "2017-10-07 01:12:39",
            "attempts": [{**attempt, "end_time": None}],
        },
    ]
    trace = read(tmp_path, json.dumps(log))
    assert trace.gpus.tolist() == [3] and trace.duration_s.tolist() == [120]
    assert "1 with gpus that is empty" in trace.notes[1]
    assert "1 with duration that is empty" in trace.notes[1]


def test_a_packed_trace(tmp_path) -> None:
    """Gzip is recognised by its first bytes."""
    file = tmp_path / "trace.csv"
    file.write_bytes(gzip.compress(PHILLY.encode()))
    assert len(read_trace(file)) == 2


def test_every_shipped_format_says_what_it_is() -> None:
    """The text is for lists and docs."""
    formats = known_formats()
    assert [*formats][-1] == "plain" and len(formats) >= 7
    assert all(form.about and (form.source or name == "plain") for name, form in formats.items())
    assert all(form.name == name for name, form in formats.items())


def test_the_philly_trace_itself() -> None:
    """82,247 jobs, none left out."""
    root = Path(__file__).resolve().parents[3]
    shared = Path(os.environ.get("WATTLOOP_SHARED_DATA") or root.parent / "shared" / "data")
    file = shared / "cluster" / "philly_jobs.csv"
    if not file.exists():
        pytest.skip(f"the Philly trace is not on this machine: {file}")
    trace = read_trace(file)
    assert len(trace) == 82_247 and int(trace.gpus.max()) == 128 and len(trace.notes) == 1
