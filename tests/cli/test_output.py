"""Tables and files as people and programs get them."""

import io
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from tests.cli.conftest import Machine, without_escapes
from wattloop.cli.output import print_rows, table_text
from wattloop.core.results import Missing
from wattloop.testing.journals import ended, header, root_window, write_journal


def shown(columns: int, *table: Any, spare: Sequence[str] = ()) -> str:
    """Return a table as a terminal of so many columns shows it."""
    screen = io.StringIO()
    screen.isatty = lambda: True  # type: ignore[method-assign]  # a terminal that remembers
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", screen)
        patch.setenv("TERM", "xterm")
        patch.setenv("COLUMNS", str(columns))
        print_rows(*table, spare=spare)
    return without_escapes(screen.getvalue())


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        (40, ["run", "when", "joules", "how"]),
        (36, ["run", "joules", "how"]),
        (26, ["run", "how"]),
    ],
)
def test_a_narrow_terminal_loses_spare_columns(columns: int, wanted: list[str]) -> None:
    """In the order given, only as many as it takes, and tells which; an empty one at once."""
    row = ("20261115-0315", "03:15", "12 J", "", "measured")
    headers = ("run", "when", "joules", "", "how")
    text = shown(columns, headers, [row], spare=("when", "joules"))
    header_line, row_line, *below = text.splitlines()
    assert header_line.split() == wanted
    gone = [name for name in ("when", "joules") if name not in wanted]
    assert " ".join(below) == (f"Left out for want of width: {', '.join(gone)}." if gone else "")
    assert row_line.startswith("20261115-0315 ")


def test_the_first_column_is_never_cut() -> None:
    """Whatever does not fit is folded, so that nothing that people copy is lost."""
    text = shown(30, ("run", "source"), [("20261115-031500-3f9a1c", "powercap intel-rapl:0")])
    assert "20261115-031500-3f9a1c" in text
    assert "…" not in text


def test_runs_are_listed_whole_on_80_columns(bare: Machine) -> None:
    """A terminal of the usual width shows identifiers that can be copied, a line per run."""
    folder = bare.store.with_name(f"{bare.store.name}.journals")
    first = header("20270115-080000-aaaaaa", name="train")
    write_journal(folder, first["run_id"], head=first, end=ended(), seconds=1)
    second = header("20270116-080000-bbbbbb", name="true")
    failed = ended(root_window(gpu_j=0.25), status="failed", exit_code=3)
    write_journal(folder, second["run_id"], head=second, end=failed, seconds=1)
    *lines, below = bare.on_terminal("runs", "list").splitlines()
    assert below == "Left out for want of width: started, power."
    assert len(lines) == 3
    assert max(map(len, lines)) <= 80
    assert {line.split()[0] for line in lines} == {"run", first["run_id"], second["run_id"]}
    assert all("measured" in line for line in lines[1:])


def test_a_status_that_all_runs_have_leaves_before_their_duration(bare: Machine) -> None:
    folder = bare.store.with_name(f"{bare.store.name}.journals")
    for number in range(2):
        head = header(f"2027011{number}-080000-aaaaaa", name="finetune-bert-large")
        write_journal(folder, head["run_id"], head=head, end=ended(), seconds=1)
    *lines, below = bare.on_terminal("runs", "list").splitlines()
    assert below == "Left out for want of width: started, power, status."
    assert "duration" in lines[0].split()


def test_words_and_quantities_are_cut_last() -> None:
    """A narrow terminal folds long texts between words, and no number from its unit."""
    headers = ("run", "name", "energy", "how")
    text = shown(40, headers, [("20261115-0315", "a long name of it", "12.3 kJ", "estimated")])
    assert "estimated" in text
    assert "12.3 kJ" in text
    assert max(map(len, text.splitlines())) <= 40


def test_a_spare_column_that_is_empty_is_left_out_once() -> None:
    """An unnamed column without a cell in it, named as spare too, does no harm."""
    table = (("GPUs", "", "batch"), [("1 x h200", "", "8"), ("2 x h200", "", "16")])
    lines = [line.strip() for line in shown(8, *table, spare=("", "batch")).splitlines()]
    assert lines[:3] == ["GPUs", "1 x h200", "2 x h200"]
    assert " ".join(lines[3:]) == "Left out for want of width: batch."
    assert "batch" in shown(40, *table, spare=("", "batch"))


def test_a_column_in_no_need_to_go_stays_though_it_has_no_name() -> None:
    """A spare column without a header is shown where there is room."""
    assert "spread" in shown(40, ("GPUs", ""), [("2 x h200", "spread")], spare=("",))


def test_a_title_is_not_wrapped_through_an_identifier() -> None:
    """A title breaks between words: an identifier with hyphens stays whole for copying."""
    table = (("run",), [("a",)], "Trials of sweep-20261115-031500-3f9a at the default")
    assert "sweep-20261115-031500-3f9a" in shown(30, *table)


def test_columns_are_aligned_below_wide_letters() -> None:
    """A CJK character takes two columns of a terminal, an accent none."""
    rows = [("漢字", "1 J"), ("gro\u0308ße", "2 J"), ("abcd", "3 J")]
    assert table_text(("name", "energy"), rows).splitlines()[1:] == [
        "漢字   1 J",
        "gro\u0308ße  2 J",
        "abcd   3 J",
    ]


def test_runs_with_something_missing_are_whole_on_80_columns(bare: Machine) -> None:
    """Nor does an unread device, a nested run or a long name break words in two."""
    folder = bare.store.with_name(f"{bare.store.name}.journals")
    part = root_window()._replace(missing=(Missing("dram", "no sensor", ""),))
    for number, name in enumerate(["true", "a name of some words", "x" * 400]):
        first = header(f"20270115-08000{number}-aaaaaa", name=name)
        write_journal(folder, first["run_id"], head=first, end=ended(part), seconds=1)
    text = bare.on_terminal("runs", "list")
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("incomplete") == text.count("measured") == 3
    assert "x" * 61 not in text


@pytest.mark.parametrize("columns", [24, 40, 60])
def test_a_number_is_never_cut_in_two(columns: int) -> None:
    """Columns that do not fit follow in a block below, under the first column again."""
    headers = ("parameter", "coefficient", "standard error", "t", "rows")
    text = shown(columns, headers, [("lr_0.1", "-0.020001", "0.004714", "-4.243", "123456")])
    for number in ("-0.020001", "0.004714", "-4.243", "123456"):
        assert number in text
    assert text.count("lr_0.1") == text.count("parameter") >= 1
    assert max(map(len, text.splitlines())) <= columns
