"""Promises of `wattloop agent deliver`: what waits is sent, and what cannot be is said."""

import json
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed")

from tests.fleet.delivery.served import NODE, served, whole
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
        assert main([*words, "--json", "-"]) == 0
        assert json.loads(capsys.readouterr().out)["stored"] == 1
        secret.write_text("wrong")
        whole(folder, "20260101-000000-bbbbbb")
        assert main(words) == 2
        assert "401" in capsys.readouterr().err
    assert len(list(folder.glob("*.journal"))) == 1
    config.write_text(f"folder: {tmp_path}/agent/{{node}}\n")
    assert main(words) == 2
