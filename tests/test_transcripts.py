"""Promises of the pages for newcomers: their commands run, and print the shown output."""

from pathlib import Path

import pytest

from tests.support.transcripts import Session, follow, not_printed, shape, steps_of

ROOT = Path(__file__).parents[1]
PAGES = {
    "docs/start.md": (),
    "docs/tutorials/student.md": ("torch", "vl_convert"),
    "docs/tutorials/hugging-face.md": ("torch", "transformers", "accelerate", "vl_convert"),
    "docs/tutorials/researcher.md": ("vl_convert",),
    "docs/tutorials/operator.md": (),
}
"""Pages that are followed from top to bottom, with the libraries they need."""


@pytest.mark.parametrize("page", PAGES)
def test_a_page_can_be_followed(page: str, tmp_path: Path) -> None:
    """Every command works in the order of the page, and prints the lines below it."""
    for library in PAGES[page]:
        pytest.importorskip(library, reason=f"{library} is not installed")
    assert follow((ROOT / page).read_text("utf-8"), Session(tmp_path)) == []


def test_a_line_that_changed_is_found() -> None:
    """Numbers, units, widths and identifiers may differ; words, their order and columns may not."""
    printed = [
        "cap    time",
        "700 W  98 ms   run 20260101-000000-abcdef +1.2% ± 3.4%",
        "in 3 min 05 s",
    ]
    same = (
        "cap  time",
        "500 W  2.06 s  run 20251231-235959-012345 -0.1% ± 2% (within uncertainty)",
    )
    assert not_printed((*same, "in 7.84 s", "in 1 h 02 min", "...", ""), printed) == []
    assert not_printed(("cap   energy",), printed) == ["cap   energy"]
    assert not_printed(("500 W  2.06 s",), printed) == ["500 W  2.06 s"]
    assert not_printed(("500 W  2.06 s ...",), printed) == []
    change = "energy per step  2.95 mJ ± 2.05 mJ  15.1 mJ ± 10.5 mJ  +411.3% ± 5.1%"
    for text in ("x 12.3 ± 0.4", "< ±0.1%", "-3.1%", "+9.9% ± < 0.1%"):
        assert not_printed((change,), [change.replace("+411.3% ± 5.1%", text)]) == []
    verdict = "a is better than b: a has energy per sample -36.1% ± < 0.1%. Certain"
    assert not_printed((verdict,), ["b against a: not certain. Its energy differs by +1%"]) == []
    assert not_printed((verdict,), ["energy per sample"]) == [verdict]
    choice = "...for EDP...W, +11.16 ± 3.96 %"
    assert not_printed((choice,), ["no setting beats the default for EDP: 700 W (default)"]) == []
    assert not_printed((choice,), ["best for energy: 300 W, +2 %"]) != []
    nothing = ("wattloop: nothing to advise on run 1: no rule had readings", "  carbon-hour")
    assert (
        not_printed(nothing, ["saving: upper bound: the energy of the start-up beyond 15 s"]) == []
    )
    assert not_printed(nothing, ["saving: upper bound: what idles"]) == list(nothing)
    assert not shape("best cap: 500 W").fullmatch("best cap: none")


def test_commands_are_read_with_their_output() -> None:
    """A backslash continues a command; a block may have several."""
    first, second = steps_of("$ wattloop run \\\n    -- true\nline\n$ wattloop devices\n")
    assert (first.command, first.shown) == ("wattloop run -- true", ("line",))
    assert (second.command, second.shown) == ("wattloop devices", ())
