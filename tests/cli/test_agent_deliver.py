"""Promises of `wattloop agent deliver`: waiting journals are sent, and failures are reported."""

import json
import signal
import socket
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed")

from tests.fleet.delivery.served import NODE, begin, served, whole
from wattloop.cli.main import main


def test_what_an_agent_left_behind_is_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the agent's own file; once, and with what came of it as JSON."""
    folder = tmp_path / "agent" / NODE / "journals"
    folder.mkdir(parents=True)
    with served(tmp_path) as site:
        secret = tmp_path / "secret"
        secret.write_text(site.secret)
        secret.chmod(0o600)
        config = tmp_path / "agent.yaml"
        config.write_text(
            f"folder: {tmp_path}/agent/{{node}}\n"
            f"deliver:\n  url: {site.url}\n  token_file: {secret}\n  every_s: 0.02\n"
        )
        whole(folder, "20260101-000000-aaaaaa")
        words = ["agent", "deliver", "--node", NODE, "--config", str(config), "--once"]
        before = signal.getsignal(signal.SIGTERM)
        assert main([*words, "--json", "-"]) == 0
        assert signal.getsignal(signal.SIGTERM) is before  # a later SIGTERM is not swallowed
        assert json.loads(capsys.readouterr().out)["stored"] == 1
        secret.write_text("wrong")
        whole(folder, "20260101-000000-bbbbbb")
        assert main(words) == 2
        assert "401" in capsys.readouterr().err
    assert len(list(folder.glob("*.journal"))) == 1
    config.write_text(f"folder: {tmp_path}/agent/{{node}}\n")
    assert main(words) == 2


def agent_config(tmp_path: Path, url: str, secret: str) -> list[str]:
    """A command that delivers the folder of node n1 to a server."""
    token = tmp_path / "secret"
    token.write_text(secret)
    token.chmod(0o600)
    config = tmp_path / "agent.yaml"
    config.write_text(
        f"folder: {tmp_path}/agent/{{node}}\n"
        f"deliver:\n  url: {url}\n  token_file: {token}\n  every_s: 0.02\n"
    )
    return ["agent", "deliver", "--node", NODE, "--config", str(config), "--once"]


def test_server_that_never_answers_is_given_up_with_a_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It accepts connections and is silent, as behind a firewall or a hung proxy."""
    folder = tmp_path / "agent" / NODE / "journals"
    folder.mkdir(parents=True)
    whole(folder, "20260101-000000-aaaaaa")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert main([*agent_config(tmp_path, url, "x"), "--timeout", "0.5"]) == 2
    said = capsys.readouterr().err
    assert f"1 journal(s) in {folder} for {url}" in said
    assert "no answer for 0.5 s" in said
    assert len(list(folder.glob("*.journal"))) == 1


def test_journal_without_an_end_does_not_keep_the_command_waiting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An agent may continue it for ten minutes; a user with `--once` is told so, and does not
    wait.
    """
    folder = tmp_path / "agent" / NODE / "journals"
    folder.mkdir(parents=True)
    begin(folder, "20260101-000000-aaaaaa", samples=3).close()
    with served(tmp_path) as site:
        assert main([*agent_config(tmp_path, site.url, site.secret), "--timeout", "6"]) == 2
    said = capsys.readouterr().err
    assert "1 journal(s) did not come into the store for 6 s" in said
    assert "no end yet" in said
