"""Promises of the map of the tree and of the ratchet on its size."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_map_is_current() -> None:
    """docs/map.md equals the docstrings; `python scripts/make_map.py` writes it."""
    script = runpy.run_path(str(ROOT / "scripts" / "make_map.py"))
    assert (ROOT / "docs" / "map.md").read_text("utf-8") == script["page_text"]()


def test_the_ratchet_fails_when_the_tree_grows(monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]  # fixtures
    """One module above the limit is refused, and the table names it."""
    script = runpy.run_path(str(ROOT / "scripts" / "ratchet.py"))
    found = dict(script["measure_tree"]())
    found["modules"] += 10_000
    monkeypatch.setitem(script["main"].__globals__, "measure_tree", lambda: found)
    assert script["main"]() == 1
    assert "grew" in capsys.readouterr().out


def test_the_ratchet_counts_banned_words_in_files(tmp_path: Path) -> None:
    """Listed words and phrases count in any case; other words that contain them do not."""
    script = runpy.run_path(str(ROOT / "scripts" / "ratchet.py"))
    file = tmp_path / "test_x.py"
    file.write_text(
        '"""No' + "body knows; it is no" + ' fault. It is no longer besides, NOBODY_UID."""\n'
    )
    assert script["count_banned_words"]([file, file]) == 4
