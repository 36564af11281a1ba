"""Promises of the notebook magic in a real kernel, and of results as HTML."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.conftest import Machine
from wattloop.core.errors import ConfigError
from wattloop.core.records import Provenance, Scope
from wattloop.core.results import DomainEnergy, Missing, WindowResult
from wattloop.integrations.notebook import CellEnergy, parse_options
from wattloop.integrations.run_phases import StepTotals

TRAINING = """
import time, torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(40, 4))
for (x,) in torch.utils.data.DataLoader(data, batch_size=4):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    time.sleep(0.01)
"""


def notebook(path: Path, *cells: str) -> Path:
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbformat.write(made, path)
    return path


EXECUTE = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], 4)
manager = nbclient.NotebookClient(notebook, kernel_name="python3", allow_errors=True, timeout=600)
manager.create_kernel_manager()
manager.km.kernel_spec.argv[0] = sys.executable
manager.execute()
nbformat.write(notebook, sys.argv[1])
"""


def executed(path: Path, *prefix: str) -> tuple[list[Any], subprocess.CompletedProcess[str]]:
    """Return the outputs of a notebook's cells that a real kernel has run."""
    for name in ("nbclient", "ipykernel"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    words = [*prefix, sys.executable, "-c", EXECUTE, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return [cell["outputs"] for cell in json.loads(path.read_text())["cells"]], done


def html_of(outputs: list[Any]) -> str:
    found = [o["data"]["text/html"] for o in outputs if o["output_type"] == "display_data"]
    return "".join("".join(html) for html in found)


def test_a_cell_is_measured_in_a_real_kernel(machine: Machine, tmp_path: Path) -> None:
    """Promise: result, error and namespace of a cell are as without the magic; each cell that
    trains has its own steps, and one without the magic has none.
    """
    pytest.importorskip("torch", reason="PyTorch is not installed")
    cells = ["%load_ext wattloop", f"%%wattloop -n first -o first\n{TRAINING}\n41 + 1"]
    cells += [TRAINING, f"%%wattloop -n second -o second\n{TRAINING}", "%%wattloop -q\n1 / 0"]
    cells += ["(first.totals.steps, second.totals.steps, first.run_id != second.run_id)"]
    cells += ["%wattloop -q answer = 42", "answer", "%%wattloop --no\n1"]
    outputs, _ = executed(notebook(tmp_path / "a.ipynb", *cells))
    (value,) = [o for o in outputs[1] if o["output_type"] == "execute_result"]
    assert value["data"]["text/plain"] in ("42", ["42"])
    assert "10 steps of" in html_of(outputs[1])
    assert "10 steps of" in html_of(outputs[3])
    assert [o.get("ename") for o in outputs[4]] == ["ZeroDivisionError"]
    assert "".join(outputs[5][0]["data"]["text/plain"]) == "(10, 10, True)"
    assert "".join(outputs[7][0]["data"]["text/plain"]) == "42"
    assert "--no: unknown" in json.dumps(outputs[8])
    names = {journal.header["name"] for journal in machine.journals()}
    assert {"first", "second", "cell"} <= names


def test_a_kernel_under_wattloop_run_has_steps(machine: Machine, tmp_path: Path) -> None:
    """Promise: `wattloop run -- jupyter ...` sees the steps of the kernel, without a magic."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    path = notebook(tmp_path / "b.ipynb", TRAINING)
    target = tmp_path / "run.json"
    prefix = [sys.executable, "-m", "wattloop", "run", "--json", str(target), "--"]
    executed(path, *prefix)
    assert json.loads(target.read_text())["step_totals"]["steps"] == 10


def test_a_result_as_html_is_escaped_and_loads_nothing() -> None:
    """Promise: names of the user are escaped, and a missing domain is named with its reason."""
    gpu = DomainEnergy("gpu:0", Scope.GPU, 50.0, 1.0, Provenance.MEASURED, "NVML")
    missing = Missing("dram", "<no> DRAM & more")
    result = WindowResult("<script>", 0, None, 0.0, 2.0, (gpu,), (missing,), ("a > b",))
    for html in (result._repr_html_(), CellEnergy(result, StepTotals(3, 1.0, 2.0))._repr_html_()):
        assert "<script>" not in html
        assert "&lt;script&gt;</b>: 50.0 J ± 1.00 J in 2.00 s, incomplete" in html
        assert "&lt;no&gt; DRAM &amp; more" in html
        assert "a &gt; b" in html
        assert "25.0 W" in html
        assert not re.search(r"https?:|src=|url\(|color", html)
    assert "3 steps of 2.00 J" in html


def test_options_of_the_magic() -> None:
    """Promise: a statement may hold anything; a wrong option is named."""
    options = parse_options("-n 'two words' -q x = f('-n')", has_cell=False)
    assert (options.name, options.quiet, options.statement) == ("two words", True, "x = f('-n')")
    wrong = [("--fast", True), ("-n", True), ("-o 1x", True), ("x = 1", True), ("-q", False)]
    for line, has_cell in wrong:
        with pytest.raises(ConfigError):
            parse_options(line, has_cell=has_cell)


def test_the_magic_does_not_change_cells(machine: Machine, tmp_path: Path) -> None:
    """Promise: no variable enters a statement, `%run` shows its exception, and await is
    reported.
    """
    script = tmp_path / "fails.py"
    script.write_text("raise ValueError('inside of the script')\n")
    path = notebook(
        tmp_path / "n.ipynb",
        "%load_ext wattloop",
        "x = 5",
        "%wattloop -q s = {x}",
        "print(sorted(s))",
        f"%%wattloop -q\n%run {script}",
        "%%wattloop -q\nimport asyncio\nawait asyncio.sleep(0)",
    )
    *_, kept, failed, awaited = executed(path)[0]
    assert "[5]" in json.dumps(kept)
    assert "inside of the script" in json.dumps(failed)
    assert "top-level await" in json.dumps(awaited)
