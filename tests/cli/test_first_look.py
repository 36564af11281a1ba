"""Promises to a new user of the command line: five questions, one command each."""

from pathlib import Path

import pytest

from tests.store.test_job_queries import record
from tests.support.first_look import FAULT, fill, node_reports
from wattloop.cli.app import QUESTIONS
from wattloop.cli.main import main
from wattloop.core.records import Scope
from wattloop.fleet.nodes import write_nodes
from wattloop.store.comparison import compare
from wattloop.store.database import open_store
from wattloop.store.runs import insert_run
from wattloop.testing.journals import root_window

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("first-look") / "runs.db"
    with open_store(path) as store:
        fill(store)
        write_nodes(store, node_reports())
    return str(path)


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(words) == 0
    out, err = capsys.readouterr()
    return [*out.splitlines(), *err.splitlines()]


@pytest.mark.parametrize(
    ("verb", "word"),
    [
        ("runs", "cost most"),
        ("runs", "compare"),
        ("advise", "wasteful"),
        ("predict", "Cost"),
        ("fleet", "wrong on nodes"),
    ],
)
def test_the_help_names_the_verb_of_each_question(
    verb: str, word: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who knows the question finds the verb in `wattloop --help`."""
    monkeypatch.setenv("COLUMNS", "200")
    lines = [line.strip("│ ") for line in printed(["--help"], capsys)]
    (line,) = (line for line in lines if line.startswith(f"{verb} "))
    assert word in line


def test_what_cost_most_last_week(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The dearest run is the first row, with its cost."""
    words = ["runs", "list", "--since", "14d", "--sort", "cost", "--store", place]
    head, first, *_ = printed(words, capsys)
    assert "cost" in head and "unet-seg" in first and "EUR" in first


def test_which_of_two_runs_is_better_and_whether_it_is_certain(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(["runs", "compare", "gpt2", "gpt2-capped", "--store", place], capsys)
    (verdict,) = (line for line in lines if " is better than " in line)
    assert verdict.startswith("gpt2-capped is better than gpt2: ")
    assert "energy per step -" in verdict and "Certain" in verdict


def test_runs_within_their_uncertainty_are_not_told_apart(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same work twice on the same sensor."""
    lines = printed(["runs", "compare", "bert-large", "vit-base", "--store", place], capsys)
    assert any("vit-base against bert-large: not certain." in line for line in lines), lines


def test_runs_of_which_different_parts_were_read_are_not_told_apart() -> None:
    """A GPU that was not read is not a saving."""
    whole = root_window(gpu_j=3_000.0)
    part = whole._replace(domains=tuple(d for d in whole.domains if d.scope == Scope.CPU))
    names = {"a": whole, "b": part}
    found = compare([record(n, name=name, result=w) for n, (name, w) in enumerate(names.items())])
    assert found.verdicts == ["b against a: not certain. gpu was read in one of them only"]


def test_why_a_run_is_wasteful(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(["advise", "gpt2", "--store", place], capsys)
    assert lines[0].startswith("1. ") and any("seen: " in line for line in lines)


def test_the_help_ends_with_the_command_of_each_question(
    place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these commands answers as it is printed, with a run and a node of this store."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("WATTLOOP_STORE", place)
    help_text = printed(["--help"], capsys)
    for question, command in QUESTIONS.items():
        assert any(question in line and command in line for line in help_text)
        names = iter(("gpt2", "gpt2-capped"))
        words = [next(names) if word == "RUN" else word for word in command.split()[1:]]
        assert printed(words, capsys)


def test_what_a_measured_job_would_cost_on_an_h100(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the run alone: time, energy, money and CO2e, measured and modelled."""
    words = ["predict", "--run", "gpt2", "--gpu", "h100-sxm", "--store", place]
    lines = printed(words, capsys)
    for what, unit in (("time", "s"), ("energy", "Wh"), ("cost", "EUR"), ("carbon", "CO2e")):
        (line,) = (line for line in lines if line.startswith(f"{what} "))
        assert line.count(unit) >= 2, line
    assert any("modelled from the run and the data sheets" in line for line in lines)
    rented = printed([*words, "--price", "h100-sxm=2.50 EUR"], capsys)
    assert any(line.startswith("GPU hours ") and "EUR" in line for line in rented)
    both = printed([*words[:3], "--compare", "a100,h100-sxm", *words[5:]], capsys)
    assert sum(line.startswith("cost ") for line in both) == 2


def test_a_run_says_what_the_job_is(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", "--run", "gpt2", "--model", "hf:gpt2", "--store", place]
    assert main(words) == 2
    assert "leave out --model" in capsys.readouterr().err


def test_of_several_runs_of_a_name_it_is_said_which(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.db"
    with open_store(path) as store:
        for number in range(2):
            insert_run(store, record(number, name="twice"))
    lines = printed(["advise", "twice", "--store", str(path)], capsys)
    assert any("newest of 2 runs" in line and "runs list --name twice" in line for line in lines)
    lines = printed(["advise", record(0).run_id, "--store", str(path)], capsys)
    assert not any("newest of" in line for line in lines)


def test_what_a_job_would_cost_on_an_h100(capsys: pytest.CaptureFixture[str]) -> None:
    """Without torch: the step is a saved workload."""
    workload = str(ROOT / "examples" / "gpt2.json.gz")
    words = ["predict", "--model", workload, "--gpu", "h100", "--steps", "1000"]
    lines = printed([*words, "--tariff", "0.28 EUR"], capsys)
    (cost,) = (line for line in lines if line.startswith("cost "))
    assert "EUR" in cost


def test_whether_anything_is_wrong_on_node_7(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """State in a word, and what is wrong in a sentence; other nodes are well."""
    lines = printed(["fleet", "nodes", "--store", place], capsys)
    assert any(line.startswith("node7") and "to look at" in line for line in lines)
    assert any(line.startswith("node6") and " well " in line for line in lines)
    assert f"node7: {FAULT}" in printed(["fleet", "nodes", "node7", "--store", place], capsys)
    assert main(["fleet", "nodes", "node77", "--store", place]) == 2


@pytest.mark.parametrize("order", ["energy", "duration", "newest"])
def test_a_list_has_the_order_that_is_asked_for(
    order: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, first, *_ = printed(["runs", "list", "--sort", order, "--store", place], capsys)
    assert ("gpt2-capped" if order == "newest" else "unet-seg") in first or order == "duration"


def test_an_unknown_order_is_refused(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "list", "--sort", "price", "--store", place]) == 2
    assert "newest, cost, energy or duration" in capsys.readouterr().err
