"""Promises of `wattloop agent`: hooks that are installed, an agent that says what it does."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Machine
from wattloop.cli import main as entry


def test_hooks_are_printed_or_installed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Executable, with the folder in them, and the lines for slurm.conf."""
    assert entry.main(["agent", "hooks", "--folder", "/x/{node}"]) == 0
    assert 'folder="/x/${SLURMD_NODENAME}"' in capsys.readouterr().out
    words = ["agent", "hooks", "--install", str(tmp_path), "--json", "-"]
    assert entry.main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert f"Prolog={tmp_path}/wattloop-prolog" in found["slurm_conf"]
    assert all(Path(script).stat().st_mode & 0o111 == 0o111 for script in found["scripts"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("folder: 3\nintervall_s: 1\n", "agent.yaml:2: intervall_s: unknown field; did you mean"),
        ("interval_s: 0\n", "agent.yaml:1: interval_s"),
        ("control: {default_cap: a lot}\n", "write it as -10%, 80% or 250 W"),
        ("deliver: {}\n", "deliver.url: it is missing"),
        ("deliver: {url: head}\n", "http://head:8765"),
        ("a: [\n", "not valid YAML"),
    ],
)
def test_a_wrong_file_is_said_with_its_line(
    tmp_path: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, the line, the field, what is allowed; no traceback, nothing started."""
    config = tmp_path / "agent.yaml"
    config.write_text(f"{text}" if "folder" in text else f"{text}folder: {tmp_path}/{{node}}\n")
    assert entry.main(["agent", "run", "--config", str(config), "--node", "n1"]) == 2
    assert said in capsys.readouterr().err


def test_an_agent_measures_says_so_and_ends_in_good_order(machine: Machine) -> None:
    """It starts, answers a status request and ends on request; a second one in its folder is
    refused.
    """
    config = machine.folder / "agent.yaml"
    config.write_text(f"folder: {machine.folder}/{{node}}\ninterval_s: 0.2\n")
    words = ("--config", str(config), "--node", "n1")
    early = machine.wattloop("agent", "status", *words)
    assert early.returncode == 2
    assert b"wattloop agent run" in early.stderr
    with subprocess.Popen(
        machine.command("agent", "run", *words), env=machine.environment, cwd=machine.folder,
        stderr=subprocess.PIPE,
    ) as agent:  # fmt: skip
        give_up_s = time.monotonic() + 120
        while not (machine.folder / "n1" / "status.json").exists():
            assert time.monotonic() < give_up_s
            time.sleep(0.05)
        second = machine.wattloop("agent", "run", *words)
        shown = machine.wattloop("agent", "status", "--json", "-", *words)
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(120) == 0
    assert second.returncode == 2
    assert b"another agent" in second.stderr
    found = json.loads(shown.stdout)
    assert found["node"] == "n1"
    assert found["jobs"] == []
    assert "cpu:0/package" in found["power_w"]


def test_a_strange_name_of_a_node_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """It becomes part of paths."""
    assert entry.main(["agent", "status", "--node", "../../etc"]) == 2
    assert "--node" in capsys.readouterr().err
