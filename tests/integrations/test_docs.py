import re
from pathlib import Path

import pytest

from tests.integrations.conftest import Machine

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
SNIPPETS = re.findall(
    r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S
)
NEEDS = {
    "Plain PyTorch": ("torch",),
    "Hugging Face": ("torch", "accelerate", "transformers"),
    "Generating text": ("torch", "transformers"),
    "Lightning": ("torch", "lightning"),
    "Keras": ("torch", "keras"),
    "scikit-learn": ("sklearn",),
    "Several processes and nodes": (),
}


def test_every_snippet_is_known() -> None:
    """Promise: no snippet of the page escapes the test below."""
    assert [title for title, _ in SNIPPETS] == list(NEEDS)


@pytest.mark.filterwarnings("ignore")  # messages of the frameworks about themselves
@pytest.mark.parametrize(("title", "code"), SNIPPETS, ids=list(NEEDS))
def test_a_snippet_runs(title: str, code: str, machine: Machine) -> None:
    """Promise: each snippet of the page runs unchanged, and leaves a finished run behind."""
    for package in NEEDS[title]:
        pytest.importorskip(package, reason=f"{package} is not installed")
    exec(compile(code, f"{PAGE.name}: {title}", "exec"), {"__name__": "__main__"})
    found = machine.journals()
    assert found
    assert all(j.end is not None and j.end["status"] == "finished" for j in found)
