"""Promise of docs/predict-where.md: it shows the output of its code."""

import contextlib
import io
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "predict-where.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_code_of_the_page_prints_what_the_page_shows(block: str) -> None:
    """The comment after each block is its output."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(block, {})
    shown = [line.removeprefix("# ") for line in block.splitlines() if line.startswith("# ")]
    assert printed.getvalue().splitlines() == shown
