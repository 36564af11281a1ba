"""Promise: the package runs as a module."""

import subprocess
import sys


def test_python_m_wattloop_is_the_command():
    """`python -m wattloop` does the same as the script, with its exit code."""
    shown = subprocess.run(
        [sys.executable, "-m", "wattloop", "--version"], capture_output=True, text=True, check=True
    )
    assert shown.stdout.startswith("wattloop ")
    refused = subprocess.run(
        [sys.executable, "-m", "wattloop", "nonsense"], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
