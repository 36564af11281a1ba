"""`wattloop simulate`: tables, JSON, what-if, and bad input without a traceback."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Machine
from tests.cli.pseudo_terminal import in_terminal
from tests.schedule.campaigns.worlds import FAILING, TINY
from wattloop.cli.main import main

FIELDS = (
    *("jobs_done", "throughput_per_h", "energy_kwh", "idle_kwh", "wasted_kwh", "jct_mean_s"),
    *("jct_p95_s", "miss_rate", "peak_power_w", "over_budget_s", "jain_jct", "jain_share"),
    *("preemptions", "event_hash", "wall_s"),
)


@pytest.fixture
def scenario(here: Machine, shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small scenario in the working directory; its predictions are cached for all tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared_cache))
    path = here.folder / "tiny.yaml"
    path.write_text(TINY)
    return path


def simulate(*words: str) -> int:
    """Run the verb in this process, with one worker."""
    workers = () if "--workers" in words or words[0] in WORDS else ("--workers", "1")
    return main(["simulate", *words, *workers])


WORDS = ("list", "show", "export", "scenarios", "policies", "init")


def read(path: str) -> Any:
    """Return the content of a JSON file."""
    return json.loads(Path(path).read_text())


def test_policies_are_compared_on_the_same_seeds(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mean and deviation of each, the best marked, differences to the first with confidence."""
    assert simulate("tiny.yaml", "--policies", "fifo,sjf,zeus", "--seeds", "3") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tiny, simulated, energy of the GPUs, mean ± sd of 3 seeds; * best"
    assert lines[1].split()[:3] == ["policy", "jobs", "done"]
    assert [line.split()[0] for line in lines[2:5]] == ["fifo", "sjf", "zeus"]
    assert all("±" in line for line in lines[2:5])
    assert any("*" in line for line in lines[2:5])
    assert lines[6] == "against fifo, 95% interval over 3 paired seeds; ? may be chance"
    assert [line.split()[0] for line in lines[8:10]] == ["sjf", "zeus"]


def test_json_has_a_row_per_policy_and_seed_with_every_promised_field(scenario: Path) -> None:
    """Numbers, a hash and what is missing as null; the same again computes nothing."""
    words = ("tiny.yaml", "--policies", "fifo,zeus", "--seeds", "5,9", "--json")
    assert simulate(*words, "a.json") == 0
    found = read("a.json")
    rows = found["results"]
    assert [(row["policy"], row["seed"]) for row in rows] == [
        ("fifo", 5),
        ("zeus", 5),
        ("fifo", 9),
        ("zeus", 9),
    ]
    for row in rows:
        assert set(FIELDS) <= set(row)
        assert row["jobs_done"] > 0
        assert 0 < row["idle_kwh"] < row["energy_kwh"]
        assert len(row["event_hash"]) == 64
    assert (found["provenance"], found["scope"]) == ("simulated", "gpu")
    assert set(found["summary"]["differences"]) == {"zeus"}
    assert simulate(*words, "b.json") == 0
    assert read("b.json")["results"] == rows  # wall_s too: nothing was computed


def test_json_on_standard_output_is_all_there_is(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--json` prints no table in addition."""
    assert simulate("tiny.yaml", "--seeds", "1", "--json", "-") == 0
    assert len(json.loads(capsys.readouterr().out)["results"]) == 2


def test_one_seed_has_no_deviation_and_says_so(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A single figure, and a hint."""
    assert simulate("tiny.yaml", "--seeds", "1") == 0
    said = capsys.readouterr()
    assert "one seed: no deviation is known" in said.out
    assert "±" not in said.out
    assert "try --seeds 10" in said.err


def test_campaigns_are_found_again(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Listed, shown as they were, exported as CSV."""
    assert simulate("tiny.yaml", "--policies", "fifo", "--seeds", "2") == 0
    table = capsys.readouterr().out
    assert simulate("list") == 0
    assert "tiny" in capsys.readouterr().out
    assert simulate("show", "last") == 0
    assert capsys.readouterr().out == table
    assert simulate("export") == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.startswith("policy,seed,jobs_done,")
    assert "utilisation.a100" in header
    assert [row.split(",")[:2] for row in rows] == [["fifo", "0"], ["fifo", "1"]]


def test_options_change_the_scenario(scenario: Path) -> None:
    """Budget, horizon and any field; a budget is counted against."""
    words = ("--policies", "fifo", "--seeds", "1", "--json", "a.json")
    changes = ("--budget", "400W", "--horizon", "1h", "--set", "jobs.generate.rate_per_s=0.01")
    assert simulate("tiny.yaml", *words, *changes, "--check") == 0
    found = read("a.json")
    assert found["results"][0]["over_budget_s"] > 0
    assert found["spec"]["scenario"]["jobs"]["generate"]["rate_per_s"] == 0.01
    assert found["results"][0]["jobs"] > 20


def test_a_trace_takes_the_place_of_generated_jobs(scenario: Path) -> None:
    """Its path starts here; its errors name file and line."""
    folder = scenario.parent / "traces"
    folder.mkdir()
    (folder / "jobs.csv").write_text("arrival,gpus,duration\n0,1,600\n60,2,300\n")
    words = ("--policies", "fifo", "--seeds", "1", "--json", "a.json")
    assert simulate("tiny.yaml", "--trace", "traces/jobs.csv", *words) == 0
    assert read("a.json")["results"][0]["jobs"] == 2


def test_jobs_that_can_never_run_are_reported_with_the_reason(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither dropped silently nor waited for."""
    words = ("--policies", "fifo", "--seeds", "1", "--set", "jobs.models.0.gpus=[16]")
    assert simulate("tiny.yaml", *words) == 0
    said = "44 jobs can never run: albert-base-v2 bf16: needs at least 16 GPUs of one type"
    assert said in capsys.readouterr().err


def test_a_policy_that_asks_for_the_impossible_is_named(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The action is refused, and the first refusal is quoted."""
    Path("own.py").write_text(FAILING)
    assert simulate("tiny.yaml", "--policies", "own.py:Eager,fifo", "--seeds", "1") == 0
    assert "impossible actions refused; the first: at" in capsys.readouterr().err


def test_a_policy_that_fails_ends_the_verb_with_1(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Others are shown all the same."""
    Path("own.py").write_text(FAILING)
    assert simulate("tiny.yaml", "--policies", "own.py:Broken,fifo", "--seeds", "1") == 1
    said = capsys.readouterr()
    assert "broken failed on seed 0: ZeroDivisionError: no GPU left" in said.err
    assert "(own.py:" in said.err
    assert "\nfifo" in said.out


def test_a_promise_goes_to_the_policy_that_can_keep_it(scenario: Path) -> None:
    """`--max-delay` is a parameter of Helios; others are simulated as they are."""
    words = ("--policies", "fifo,helios", "--seeds", "1", "--max-delay", "10%", "--json", "a.json")
    assert simulate("tiny.yaml", *words) == 0
    assert {row["policy"] for row in read("a.json")["results"]} == {
        "fifo",
        "helios{max_delay: 10%}",
    }


def test_whatif_answers_in_a_sentence(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both worlds, their difference with its interval, and as JSON."""
    words = ("whatif", "tiny.yaml", "--nodes", "+1", "--policy", "fifo", "--seeds", "3")
    assert simulate(*words, "--json", "a.json") == 0
    out = capsys.readouterr().out
    assert out.startswith("tiny under fifo, simulated, 3 paired seeds\n")
    assert out.splitlines()[1].split()[-1] == "difference"  # no p-value for a certain difference
    sentence = out.splitlines()[-1]
    assert sentence.startswith("With 1 more node: ")
    assert "mean completion time (95%: " in sentence
    found = read("a.json")
    assert found["answer"] == sentence
    assert found["differences"]["jct_mean_s"]["half_width"] > 0
    assert len(found["results"]) == 6


def test_the_table_of_the_page_is_what_is_printed(
    here: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/simulate.md: seven jobs of one's own, as far as the page shows their table."""
    page = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text()
    part = page[page.index("    $ cat jobs.csv\n") :]
    jobs, _, shown = part.partition("    $ wattloop simulate thesis --trace jobs.csv")
    command, *lines = (f"simulate thesis --trace jobs.csv{shown}").split("\n")
    (here.folder / "jobs.csv").write_text(
        "\n".join(line.strip() for line in jobs.splitlines()[1:]) + "\n"
    )
    assert main([*command.split(), "--workers", "1"]) == 0
    printed = capsys.readouterr().out.splitlines()
    for line, found in zip(lines[:4], printed, strict=False):
        assert found.startswith(line.strip().removesuffix("...").rstrip())


def test_what_came_of_it_is_drawn(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A page, and every figure on its own; of the first seed also power and GPUs over time."""
    pytest.importorskip("vl_convert", reason="the extra 'figures' is not installed")
    pytest.importorskip("vl_convert", reason="vl-convert is not installed")
    words = ("--policies", "fifo", "--seeds", "1", "--plot", "figures")
    assert simulate("tiny.yaml", *words) == 0
    drawn = {path.name for path in Path("figures").iterdir()}
    names = ("throughput-energy", "misses", "fairness", "power", "gpus-fifo")
    assert {"index.html", *(f"{name}.svg" for name in names)} <= drawn
    assert "5 figures in figures" in capsys.readouterr().err


def test_what_can_be_named_is_listed(here: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """Scenarios and policies, and an example that runs as it is written."""
    assert simulate("scenarios") == 0
    assert "thesis-pareto" in capsys.readouterr().out
    assert simulate("policies", "--json", "p.json") == 0
    assert {"fifo", "zeus"} <= {card["name"] for card in read("p.json")}
    assert simulate("init", "mine.yaml") == 0
    words = ("--seeds", "1", "--horizon", "1h", "--policies", "fifo", "--json", "a.json")
    assert simulate("mine.yaml", *words) == 0
    assert read("a.json")["results"][0]["jobs_done"] > 0
    assert simulate("init", "mine.yaml") == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tinny.yaml",), "tinny.yaml: cannot be read"),
        (("thesis-paretto",), "did you mean 'thesis-pareto'?"),
        (("tiny.yaml", "--policies", "zeuss"), "did you mean 'zeus'?"),
        (("tiny.yaml", "--policies", "fifo,fifo"), "fifo is given twice"),
        (("tiny.yaml", "--policies", ""), "no policy given"),
        (("tiny.yaml", "--seeds", "many"), "--seeds many: write how many"),
        (("tiny.yaml", "--workers", "0"), "--workers 0: give 1 or more"),
        (("tiny.yaml", "--budget", "50W"), "--budget 50W: budget: 50 W is below the 100 W"),
        (("tiny.yaml", "--horizon", "soon"), "--horizon soon: "),
        (("tiny.yaml", "--set", "engine.horizon=soon"), "--set engine.horizon=soon: "),
        (("tiny.yaml", "--set", "jobs.generate.rate=1"), "did you mean 'rate_per_s'?"),
        (("tiny.yaml", "--set", "rate"), "--set rate: write FIELD=VALUE"),
        (("tiny.yaml", "--trace", "none.csv"), "none.csv"),
        (("tiny.yaml", "--cap-curves", "x.csv"), "--cap-curves goes with --throughputs"),
        (("tiny.yaml", "--throughputs", "none.csv"), "none.csv"),
        (("tiny.yaml", "--variant", "rigid"), "has no such variant; it has none"),
        (("tiny.yaml", "--json", "no/where.json"), "no folder no"),
        (("show", "nothing"), "no runs yet"),
        (("tiny.yaml", "--policies", "fifo", "--max-delay", "10%"), "add --policies helios"),
        (("tiny.yaml", "--policies", "helios", "--max-delay", "much"), "give a share such as 0.1"),
        (("whatif", "tiny.yaml"), "no change given"),
        (("whatif", "tiny.yaml", "--replace", "a10=h100"), "did you mean 'a100'?"),
        (("whatif", "tiny.yaml", "--budget", "+1kW"), "no power budget to change"),
        (("whatif", "tiny.yaml", "--nodes", "new=+1"), "no group 'new'"),
        (("whatif", "tiny.yaml", "--nodes", "+1", "--policy", "fifo,sjf"), "one policy"),
    ],
)
def test_bad_input_is_refused_in_words(
    scenario: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    """Exit code 2, one message, no traceback."""
    assert simulate(*words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_a_typo_in_a_scenario_is_named_with_its_line(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """File, line, field and the nearest word."""
    scenario.write_text(TINY.replace("deadlines:", "deadline:"))
    assert simulate("tiny.yaml") == 2
    assert "tiny.yaml:9: jobs.deadline: unknown field; did you mean 'deadlines'?" in (
        capsys.readouterr().err
    )


def test_ctrl_c_keeps_what_has_ended(bare: Machine) -> None:
    """A real process with two workers, interrupted: exit code 130, and the same command
    continues.
    """
    (bare.folder / "tiny.yaml").write_text(TINY)
    words = ("simulate", "tiny.yaml", "--policies", "fifo", "--seeds", "0..499")
    started = subprocess.Popen(
        bare.command(*words, "--workers", "2"),
        env=bare.environment,
        cwd=bare.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline_s = time.monotonic() + 120
    while _kept(bare) < 3 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    os.kill(started.pid, signal.SIGINT)
    _, error = started.communicate(timeout=300)
    assert started.returncode == 130
    assert b"finished simulations are stored, the same command continues" in error
    listed = json.loads(bare.wattloop("simulate", "list", "--json", "-").stdout)["campaigns"]
    assert listed[0]["status"] == "interrupted"
    assert 3 <= listed[0]["simulations"] < 500


def test_a_terminal_shows_how_far_it_is_and_how_long_it_takes(bare: Machine) -> None:
    """Simulations done of all, the time that is left, and what ended last."""
    (bare.folder / "tiny.yaml").write_text(TINY)
    words = ("simulate", "tiny.yaml", "--policies", "fifo", "--seeds", "20", "--workers", "1")
    environment = {**bare.environment, "TERM": "xterm"}
    shown = in_terminal(bare.command(*words), environment, bare.folder, columns=120)
    assert shown.code == 0, shown.text
    assert re.search(r"\d+/20 .*left: .*fifo on seed \d+", shown.text)


def _kept(machine: Machine) -> int:
    """Simulations in the store so far."""
    try:
        with sqlite3.connect(f"file:{machine.store}?mode=ro", uri=True) as connection:
            return int(connection.execute("SELECT count(*) FROM trials").fetchone()[0])
    except sqlite3.Error:
        return 0
