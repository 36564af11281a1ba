"""Five questions of a reader who is new to the command line: one command each."""

from pathlib import Path

import pytest

from tests.store.test_job_queries import record
from tests.support.first_look import FAULT, fill, node_reports
from wattloop.cli.main import main
from wattloop.core.records import Scope
from wattloop.fleet.nodes import write_nodes
from wattloop.store.comparison import compare
from wattloop.store.database import open_store
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
        ("predict", "cost"),
        ("fleet", "wrong on nodes"),
    ],
)
def test_the_help_names_the_verb_of_each_question(
    verb: str, word: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader who knows the question finds the verb in `wattloop --help`."""
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
