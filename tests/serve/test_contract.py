import subprocess
import sys
from pathlib import Path

CALLS = Path(__file__).with_name("contract_calls.py")


def test_no_call_breaks_its_contract() -> None:
    """Promise: a call that the OpenAPI document allows is answered as it says, and an invalid one
    is refused.

    It runs in a process of its own: schemathesis generates thousands of calls during collection,
    which every worker would do.
    """
    words = [
        "-p",
        "no:xdist",
        "-p",
        "schemathesis.pytest.plugin",
        "--tb=short",
        "-o",
        "python_files=contract_calls.py",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, str(CALLS)],
        cwd=CALLS.parents[2],
        capture_output=True,
        text=True,
        timeout=1_800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
