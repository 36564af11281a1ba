"""Promises of the file of tokens: a secret grants its role only, and a doubtful file grants
nothing.

The server's use of them is tested in `tests/serve/test_nodes.py`.
"""

import json
import os
import stat
import threading
from pathlib import Path

import pytest

from wattloop.core.errors import ConfigError
from wattloop.fleet import tokens as token_file
from wattloop.fleet.tokens import Role, TokenFile, add_token, list_tokens, revoke_token


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(token_file, "CHECK_EVERY_S", 0.0)
    return tmp_path / "tokens.json"


def test_a_secret_is_known_by_its_hash_alone(path: Path) -> None:
    """A copy of the file gives no access: it holds hashes only."""
    secret = add_token(path, "n1", Role.NODE, "n1")
    kept = path.read_text()
    assert secret not in kept
    assert path.stat().st_mode & 0o077 == 0
    tokens = TokenFile(path)
    caller = tokens.caller(secret)
    assert caller is not None
    assert (caller.role, caller.node) == (Role.NODE, "n1")
    assert tokens.caller(list_tokens(path)[0].sha256) is None
    assert tokens.caller("") is None


def test_a_nodes_secret_is_for_that_node_and_reads_nothing(path: Path) -> None:
    """A reader's secret cannot report for any node either."""
    secrets = {
        "n1": add_token(path, "n1", Role.NODE, "n1"),
        "ada": add_token(path, "ada", Role.READER),
        "lab": add_token(path, "lab", Role.WRITER),
    }
    callers = {name: TokenFile(path).caller(secret) for name, secret in secrets.items()}
    assert all(callers.values())
    may = {name: (c.may_read, c.may_write_runs, c.may_speak_for("n1"), c.may_speak_for("n2"))
           for name, c in callers.items() if c is not None}  # fmt: skip
    assert may == {
        "n1": (False, True, True, False),
        "ada": (True, False, False, False),
        "lab": (True, True, False, False),
    }


def test_tokens_count_while_the_server_runs(path: Path) -> None:
    """New ones at once, revoked ones no longer."""
    first = add_token(path, "n1", Role.NODE, "n1")
    tokens = TokenFile(path)
    second = add_token(path, "n2", Role.NODE, "n2")
    assert tokens.caller(second) is not None
    revoke_token(path, "n1")
    assert tokens.caller(first) is None
    assert tokens.caller(second) is not None


@pytest.mark.parametrize("harm", ["chmod", "rubbish", "gone", "strange"])
def test_a_file_that_is_not_to_be_trusted_lets_nobody_in(
    path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Until it is mended; said once in the log, and at the start an error with what to do."""
    secret = add_token(path, "n1", Role.NODE, "n1")
    tokens, good = TokenFile(path), path.read_text()
    if harm == "chmod":
        path.chmod(0o640)
    elif harm == "rubbish":
        path.write_text("{")
    elif harm == "gone":
        path.unlink()
    else:
        rows = json.loads(good)["tokens"]
        path.write_text(json.dumps({"tokens": [{**rows[0], "role": "admin"}]}))
    assert tokens.caller(secret) is tokens.caller(secret) is None
    assert [str(path) in record.getMessage() for record in caplog.records] == [True]
    with pytest.raises(ConfigError):
        TokenFile(path)
    path.write_text(good)
    path.chmod(0o600)
    assert tokens.caller(secret) is not None


@pytest.mark.parametrize(
    ("name", "role", "node"),
    [
        *(("n1", Role.NODE, ""), ("ada", Role.READER, "n1"), ("a b", Role.READER, "")),
        *(("n1", Role.NODE, "../n2"), ("root", Role.ADMIN, ""), ("", Role.READER, "")),
    ],
)
def test_what_makes_no_sense_gets_no_secret(path: Path, name: str, role: Role, node: str) -> None:
    """Only a node's token names a node; no token can be made for the server's own name."""
    with pytest.raises(ConfigError):
        add_token(path, name, role, node)
    assert not path.exists()


def test_two_who_add_at_once_lose_nothing(path: Path) -> None:
    """Each waits for the other."""
    names = [f"n{number}" for number in range(12)]
    threads = [threading.Thread(target=add_token, args=(path, n, Role.NODE, n)) for n in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(token.name for token in list_tokens(path)) == sorted(names)


def test_a_link_that_waits_for_the_new_file_is_not_followed(path: Path, tmp_path: Path) -> None:
    """A link would redirect the write to any path."""
    target = tmp_path / "elsewhere"
    target.write_text("kept")
    waiting = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident():x}")
    waiting.symlink_to(target)
    add_token(path, "ada", Role.READER)
    assert target.read_text() == "kept"
    assert not path.is_symlink() and not waiting.is_symlink()


@pytest.mark.skipif(os.name == "nt", reason="modes are those of Unix")
def test_no_other_user_can_lock_the_file_of_tokens(tmp_path: Path) -> None:
    """A user who can read a file can lock it, and could keep the operator from revoking a token."""
    path = tmp_path / "tokens.json"
    lock = tmp_path / ".tokens.json.lock"
    lock.touch(mode=0o644)  # as an earlier release left it
    add_token(path, "ada", Role.READER)
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600
    lock.unlink()
    revoke_token(path, "ada")
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600
