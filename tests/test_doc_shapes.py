"""Promises of printed outputs whose figures need a GPU or minutes: with the same or other figures
they look as on the pages.
"""

import importlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from benchmarks.tune_stores import fill, many_trials_spec

from tests.cap.saver.test_totals import OBSERVED, record, saving
from tests.control.daemon.test_audit_log import PEER
from tests.support.synthetic_sweep import made_sweep
from tests.support.transcripts import not_printed, steps_of
from tests.support.virtual_runs import CardScript, RunScript, Work, write_run
from tests.test_doc_blocks import blocks
from tests.test_doc_outputs import EXACT
from tests.test_transcripts import PAGES as FOLLOWED
from wattloop.cap.finder import GainInterval
from wattloop.cap.saver.gpu_levers import Setting
from wattloop.cap.saver.proof import SavingResult, SavingState, SettingPeriod, format_saving
from wattloop.cli.commands.advise import say_advice
from wattloop.cli.commands.calibrate import report as report_host
from wattloop.cli.commands.watch import GpuView, gpu_lines
from wattloop.cli.main import main
from wattloop.control.daemon.audit_log import AuditLog
from wattloop.core.settings import Settings
from wattloop.integrations.run_phases import Phase, StepTotals, format_totals
from wattloop.predict.calibrate.host import HostSpeed
from wattloop.store.database import open_store
from wattloop.store.experiments import begin_trial, create_experiment, end_trial
from wattloop.store.runs import insert_run
from wattloop.virtual.gpu import Activity


def lines_of(page: str, word: str) -> tuple[str, ...]:
    """Return the lines of the one block of a page that contains a word, without its commands."""
    found = [b.lines for b in blocks() if b.page == page and any(word in x for x in b.lines)]
    assert len(found) == 1, f"{page}: {len(found)} blocks with {word!r}"
    return tuple(line for line in found[0] if line.strip() and not line.startswith("$ "))


@pytest.fixture
def here(tmp_path: Path, shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared_cache))
    monkeypatch.setenv("WATTLOOP_STORE", str(tmp_path / "runs.db"))
    monkeypatch.setenv("WATTLOOP_METERS", "estimate")
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def printed(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main([*words]) == 0
    out, err = capsys.readouterr()
    return [*out.splitlines(), *err.splitlines()]


def phases(**shares: tuple[float, float]) -> tuple[Phase, ...]:
    names = {
        name.replace("_", " ").replace("start up", "start-up"): v for name, v in shares.items()
    }
    return tuple(Phase(name, time_s, energy_j, 1) for name, (time_s, energy_j) in names.items())


STEPS = {
    "run.md": StepTotals(
        160,
        0.227,
        0.595,
        10_240,
        phases=phases(
            training=(65, 94.9), start_up=(19, 27.5), evaluation=(11, 16.4), tail=(5, 8.04)
        ),
    ),
    "save.md 3600": StepTotals(
        3_600,
        0.0512,
        58.7,
        phases=phases(
            training=(83, 211e3), start_up=(12, 4.24e3), tail=(4, 1.59e3), pause=(1, 2.02e3)
        ),
    ),
    "save.md 700": StepTotals(
        700,
        0.05,
        64.4,
        phases=phases(training=(49, 45.1e3), start_up=(42, 4.91e3), tail=(9, 1.11e3)),
    ),
    "run.md inferred": StepTotals(
        0,
        inferred=True,
        phases=phases(
            main_work=(76, 14e3),
            start_up=(8, 154),
            pause=(6, 205),
            other_work=(6.0, 1_060),
            tail=(4, 153),
        ),
    ),
    "integrations.md": StepTotals(
        16,
        0.0226,
        0.0593,
        64,
        phases=phases(
            training=(81, 0.934),
            start_up=(12, 0.148),
            tail=(6, 0.0638),
            waiting_for_data=(1, 0.0145),
        ),
    ),
}


@pytest.mark.parametrize("case", STEPS)
def test_steps_and_phases_are_written_as_shown(case: str) -> None:
    """The same figures give the same lines."""
    page = f"docs/{case.split(maxsplit=1)[0]}"
    shown = [re.sub("^wattloop: ", "", x) for b in blocks() if b.page == page for x in b.lines]
    missing = not_printed(tuple(format_totals(STEPS[case])), shown)
    assert missing == []


SAVINGS = {
    "docs/save.md:3600": SavingResult(
        SavingState.APPLIED,
        saved_pct=GainInterval(8.1, 7.0, 9.2),
        slowdown_pct=GainInterval(3.3, 2.2, 4.5),
    ),
    "docs/save.md:700": SavingResult(
        SavingState.OBSERVED,
        reason="--observe was given",
        expected_pct=GainInterval(9.5, 0.0, 25.9),
    ),
    "README.md:": SavingResult(
        SavingState.APPLIED,
        periods=(SettingPeriod(0.0, Setting(None, 1_830.0)),),
        saved_pct=GainInterval(5.1, 4.4, 5.7),
        slowdown_pct=GainInterval(2.9, 2.5, 3.4),
    ),
}


@pytest.mark.parametrize("case", SAVINGS)
def test_a_saving_is_written_as_shown(case: str) -> None:
    """The figures of the page give its line, to the digit."""
    page = case.partition(":")[0]
    shown = [line for block in blocks() if block.page == page for line in block.lines]
    assert f"wattloop: {format_saving(SAVINGS[case])}" in shown


def test_summaries_of_runs_are_as_shown(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/run.md, docs/save.md: energy with its uncertainty, time, devices, run."""
    told = printed(["run", "--", "true"], capsys)
    for page in ("docs/run.md", "docs/save.md"):
        rows = [x for b in blocks() if b.page == page for x in b.lines if "| run 2026" in x]
        assert rows
        for row in rows:
            line = re.sub(r"\| (?:cpu|gpu) .*\| run", "| ... | run", row)
            line = re.sub(r"wattloop: .* in .* \| \.\.\.", "wattloop: ... in ... | ...", line)
            assert not_printed((line,), told) == []


def test_the_sum_of_savings_is_as_shown(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/save.md: sums with intervals, then a row per run."""
    with open_store(here / "runs.db") as store:
        for each in (record("r1", saving()), record("r2", saving()), record("r3", OBSERVED)):
            insert_run(store, each)
    rows = lines_of("docs/save.md", "could save")
    table = next(n for n, row in enumerate(rows) if row.startswith("run "))
    sums = tuple(re.sub(r"2 runs", "2 runs", row) for row in rows[:table])
    told = printed(["savings"], capsys)
    assert not_printed(sums, told) == []
    heads = [line.split() for line in told]
    assert any(head[:1] == ["run"] and {*rows[table].split()} <= {*head} for head in heads)


@pytest.fixture
def sweep(here: Path) -> Path:
    """Store a sweep over caps on 1 and 8 GPUs."""
    experiment, trials = made_sweep()
    with open_store(here / "runs.db") as store:
        create_experiment(store, experiment)
        for trial in trials:
            begin_trial(store, experiment.experiment_id, trial.key, trial.settings)
            end_trial(store, experiment.experiment_id, trial)
    return here


def test_tables_of_a_sweep_are_as_shown(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/sweep.md: costs and gains of every setting, the best by each metric."""
    told = printed(["sweep", "show", "last"], capsys)
    rows = [
        re.sub(r"\d of \d", "3", line.replace("caps, window 'training'", "made"))
        for line in lines_of("docs/sweep.md", "best for EDP on 8 GPUs")
        if not line.startswith("4 GPUs")
        and not any(word in line for word in ("beginning", "of the means"))
    ]
    single = tuple(row for row in rows if "on 4 GPUs" not in row)
    assert not_printed(single, told) == []


def test_a_front_is_as_shown(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/analyze.md: undominated runs, the knee, and how it was found."""
    told = printed(["analyze", "pareto", "last"], capsys)
    title, head, *rows, last = lines_of("docs/analyze.md", "Pareto front, ")
    shapes = tuple(re.sub(r"^gpu/\S+ .*?#", "... #", row) for row in rows)
    knee = next(row for row in shapes if "knee" in row)
    columns = [line.split() for line in told]
    assert re.sub(r"^\S+:", "made:", title).split()[:3] == told[0].split()[:3]
    assert [*filter(lambda name: name != "gpus", columns[1])] == head.split()
    assert any("knee" in line for line in told) and "knee" in knee
    assert not_printed((last,), told) == []
    assert not_printed((re.sub(r"(\d+)$", r"8 \1", shapes[0]),), told) == []


def test_advice_below_a_run_is_as_shown(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/advise.md: the two best, and where the evidence is."""
    memory = CardScript([Work(2, Activity(0.35, 1.0, 1.0))])
    script = RunScript(
        run_id="20260101-000000-abcdef", duration_s=60.0, cards=[memory, CardScript()]
    )
    with open_store(here / "runs.db") as store:
        write_run(store, script)
        say_advice(store, script.run_id, Settings())
    told = capsys.readouterr().err.splitlines()
    rows = tuple(
        line for line in lines_of("docs/advise.md", "advice: A cap") if "in " not in line[:40]
    )
    assert not_printed(rows, told) == []


def test_the_log_of_the_daemon_is_as_shown(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/control-daemon.md: each change with its user, values and reason."""
    log = AuditLog(here / "c.jsonl")
    lever = {"lever": "gpu:0/power_limit"}
    log.write("set", PEER, **lever, before=630.0, after=400.0, why="")
    log.write("set", PEER, **lever, before=400.0, after=350.0, why="asked for 50%")
    log.write("released", PEER, **lever, before=350.0, after=630.0, why="released")
    log.close()
    told = printed(["control-daemon", "log", "--lines", "3", "--log", "c.jsonl"], capsys)
    head, *rows = lines_of("docs/control-daemon.md", "asked for 50%")
    assert told[0].split() == head.split()
    assert len(told) == 1 + len(rows)
    for row, line in zip(rows, told[1:], strict=True):
        parts, own = row.split(), line.split()
        assert (
            own[1] == parts[1]
            and own[own.index(lever["lever"]) :] == parts[-len(own[own.index(lever["lever"]) :]) :]
        )


def test_a_budget_below_idle_is_refused_as_shown(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/scenarios.md, the third message."""
    shown = next(x for x in lines_of("docs/scenarios.md", "a41") if "with nothing to do" in x)
    watts = re.findall(r"([\d,]+) W", shown)
    (here / "lab.yaml").write_text(
        "like: thesis-budget\ncluster:\n  name: lab\n  groups:\n"
        "    - {name: a, gpu: a40, nodes: 2, gpus_per_node: 4, host_w: 100}\n"
        f"budget: {watts[0]} W\n"
    )
    assert main(["simulate", "lab.yaml", "--policies", "fifo"]) == 2
    told = [line.removeprefix("wattloop: ") for line in capsys.readouterr().err.splitlines()]
    assert not_printed((shown,), told) == []


STUDY = """
name: greener-cluster
need: less energy
kpis:
  - {metric: energy_kwh, goal: "-1%"}
  - {metric: throughput_per_h, goal: no worse than 1 sd}
baseline: {scenario: short.yaml, policy: pollux, seeds: 2}
candidates: [zeus, helios]
validation: {scenario: short.yaml, seeds: "100..103"}
"""


def test_the_steps_of_a_study_are_as_shown(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/study.md: figures, candidates against goals, the decision, the proof."""
    (here / "study.yaml").write_text(STUDY)
    (here / "short.yaml").write_text("like: thesis-pareto\nengine: {horizon: 2 h}\n")
    told = []
    for step in ("baseline", "characterize", "simulate", "decide", "validate"):
        told += printed(["study", step], capsys)
    shown = lines_of("docs/study.md", "wattloop: decision: helios")
    unlike = (
        "hades",
        "chronos",
        "symptom: ",
        "seeds 10",
        "zeus ",
        "fails energy",
        "  zeus",
        "peaks",
    )
    rows = tuple(line for line in shown if not any(word in line for word in unlike))
    assert len(rows) > 12
    assert not_printed(rows, [line.replace("short.yaml", "thesis-pareto") for line in told]) == []


def test_the_gallery_names_figures_that_there_are(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/gallery.md: pictures of a sweep have the names of its figures; tests draw each kind."""
    text = Path(__file__).parents[1].joinpath("docs", "gallery.md").read_text("utf-8")
    names = re.findall(r"images/gallery/sweep-([\w-]+)\.svg", text)
    assert main(["sweep", "plot", "last", "-j"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    # power over time is drawn for runs with samples, in tests/report
    assert names and {*names} - {"power-over-time"} <= {*figures}


def test_the_speed_of_a_host_is_as_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """docs/predict.md: the figures of the page give its table and its last line."""
    head, *rows, last = lines_of("docs/predict.md", "calibrated host  speed")[-7:]
    cells = [re.split(r"\s{2,}", row) for row in rows]
    dispatch_s = {name: float(one.split()[0]) / 1e3 for name, one, _, _ in cells}
    expected_s = {name: float(other.split()[0]) / 1e3 for name, _, other, _ in cells}
    report_host(HostSpeed(0.77, 0.74, 0.77, dispatch_s, expected_s), "h200", None, None)
    out, err = capsys.readouterr()
    told = [*out.splitlines(), *err.splitlines()]
    shown = [re.split(r"\s{2,}", line.rstrip()) for line in (head, *rows, last)]
    assert shown == [re.split(r"\s{2,}", line.rstrip()) for line in told]


def test_an_export_into_a_tracker_is_told_as_shown(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/run.md; tests of the trackers check the written rows."""
    monkeypatch.setattr("wattloop.integrations.loggers.export_to_tracker", lambda *words: None)
    with open_store(here / "runs.db") as store:
        insert_run(store, record("20260101-000000-abcdef", None))
    (shown,) = lines_of("docs/run.md", "--to mlflow")
    target = shown.rpartition(" ")[2]
    told = printed(["runs", "export", "last", "--to", "mlflow", "--into", target], capsys)
    assert not_printed((shown,), told) == []
    assert any(line.endswith(target) for line in told)


def test_tables_of_a_search_are_as_shown(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/tune.md: columns of trials next to those of parameters, the best, the spent budget."""
    with open_store(here / "runs.db") as store:
        fill(store, many_trials_spec(), 3)
    told = printed(["tune", "show", "last"], capsys)
    head, *rows = lines_of("docs/tune.md", "wattloop tune run examples/digits.yaml")
    own = next(line for line in told if line.startswith("trial"))
    shown, found = ({re.sub(r" \(.*", "", c) for c in re.split(r"\s{2,}", x)} for x in (head, own))
    assert shown - {"batch_size", "lr", "hidden", "best accuracy"} <= found
    for beginning in ("best: ", "spent: "):
        for lines in (rows, told):
            assert any(line.startswith(beginning) for line in lines)


def test_a_gpu_under_watch_is_as_shown() -> None:
    """docs/cli.md: the figures of the page, at the width of its terminal."""
    shown = lines_of("docs/cli.md", "last minute ")
    power_w = tuple(360.0 + 30 * n for n in (3, 2, 4, 0, 4, 2, 2, 6, 6, 2, 3, 7))
    card = ("gpu:0", "virtual H200", "simulated", 5_010.0, 360.0, 700.0, 0.0, 477 * 2**20)
    view = GpuView(*card, 140 * 2**30, 345.0, 3_201.0, 44.0, "run night", None, power_w)
    told = ["".join(text for text, _ in line).rstrip() for line in gpu_lines(view, 80)]
    assert [re.sub("[▁-█]+$", "", line) for line in told] == [
        re.sub("[▁-█]+$", "", line.rstrip()) for line in shown
    ]


def test_a_check_of_a_set_up_is_as_shown(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/doctor.md: the same checks in the same order, each with a state."""
    main(["doctor"])
    told = capsys.readouterr().out.splitlines()
    check = re.compile(r"(ok|warn|fail)\s+(\w+)\s+\S")
    names = [
        [found[2] for x in lines if (found := check.match(x))]
        for lines in (lines_of("docs/doctor.md", "fix: load it"), told)
    ]
    assert names[0] == names[1] and len(names[0]) > 8
    assert re.match(r"\d+ warning|Everything|All", told[-1]) or told[-1].endswith(".")


def test_the_small_table_of_sm2_is_as_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/tune-torch.md: lines of the example, with searches of given costs."""
    pytest.importorskip("torch", reason="torch is not installed")
    example = importlib.import_module("examples.sm2")
    monkeypatch.setattr(example, "training", lambda *words, **more: None)
    monkeypatch.setattr(example, "vanilla", lambda *words, **more: (14.0, 11_017))
    monkeypatch.setattr(example, "sm2", lambda *words, **more: ((48.3, 133_471), "one is left"))
    example.main(["--seeds", "3"])
    told = capsys.readouterr().out.splitlines()
    assert (
        not_printed(lines_of("docs/tune-torch.md", "python examples/sm2.py --seeds 3"), told) == []
    )


ELSEWHERE = {
    **dict.fromkeys(FOLLOWED, "tests/test_transcripts.py"),
    "README.md": "tests/test_readme.py; --save here",
    "docs/predict.md": "tests/predict/test_documented.py; the host here",
    "docs/oracle-service.md": "tests/serve/test_oracle.py",
    "docs/bench.md": "tests/cli/test_bench.py",
    "docs/gallery.md": "tests/test_transcripts.py writes it; names of figures here",
}
"""Pages whose outputs other tests compare as a whole."""
SINGLE = {
    "docs/advise.md": ("WATTLOOP_VIRTUAL_GPUS=2 wattloop run", "wattloop advise"),
    "docs/analyze.md": ("wattloop analyze pareto",),
    "docs/control-daemon.md": ("sudo wattloop control-daemon log",),
    "docs/doctor.md": ("wattloop doctor",),
    "docs/run.md": ("wattloop run -- ", "wattloop runs export last --to mlflow"),
    "docs/save.md": ("wattloop run --save ", "wattloop savings"),
    "docs/serving.md": ("wattloop run --serving",),
    "docs/simulate.md": ("cat jobs.csv", "wattloop simulate thesis --trace jobs.csv"),
    "docs/study.md": ("wattloop study ",),
    "docs/sweep.md": ("wattloop sweep caps.yaml",),
    "docs/tune.md": ("wattloop tune run", "wattloop tune final"),
    "docs/tune-torch.md": ("python examples/sm2.py",),
}
"""Commands whose outputs are compared here, in test_doc_outputs.py or in tests of their verb."""


def test_every_output_of_the_documentation_is_compared() -> None:
    """A command with an output on a new page needs a test, and a line in the lists above."""
    known = {*EXACT}
    unknown = []
    for block in blocks():
        text = "\n".join(block.lines)
        if not re.search(r"^\$ ", text, re.M) or block.page in ELSEWHERE:
            continue
        for step in steps_of(text):
            printed_lines = [x for x in step.shown if x.strip() not in ("", "...")]
            compared = [
                *SINGLE.get(block.page, ()),
                *(start for page, start, _ in known if page == block.page),
            ]
            if printed_lines and not step.command.startswith(tuple(compared)):
                unknown.append(f"{block.page}:{block.line}: {step.command}")
    assert unknown == []
