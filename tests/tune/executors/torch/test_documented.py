import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="trainings in PyTorch need torch")

PAGE = Path(__file__).parents[4] / "docs" / "tune-torch.md"


def test_the_example_of_the_page_runs(tmp_path, monkeypatch, capsys) -> None:
    """Promise: the example of docs/tune-torch.md runs unchanged."""
    monkeypatch.setenv("WATTLOOP_STORE", str(tmp_path / "runs.db"))
    code, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    # Sensors of a CPU are too rough for 2%; five seconds each would be waited in vain.
    code = code.replace("problem.quality)\nwhile", "problem.quality, error=1e9)\nwhile")
    exec(compile(code, str(PAGE), "exec"), {})
    assert "batch_size" in capsys.readouterr().out
