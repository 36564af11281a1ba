"""Promises for NVIDIA cards, whose driver lets only root set anything."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control.conftest import eventually
from tests.control.daemon.conftest import NOBODY_UID, DaemonRig, as_user, needs_root
from tests.support.nvml_stub import NoCompiler, StubNvml
from wattloop.control.daemon.protocol import SOCKET_VARIABLE
from wattloop.control.registry import find_levers, lever_named
from wattloop.control.session import lever_session
from wattloop.core.errors import LeverError
from wattloop.core.settings import Settings
from wattloop.hardware.host import Host

pytestmark = needs_root
LIMIT = "gpu:0/power_limit"


@pytest.fixture
def cards(rig: DaemonRig) -> Iterator[StubNvml]:
    """Return two cards, in files that other users can read."""
    folder = Path(tempfile.mkdtemp(prefix="wattloop-stub-"))
    try:
        stub = StubNvml(folder, gpus=2)
    except NoCompiler as reason:
        pytest.skip(str(reason))
    with stub:
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o777)
        for name in stub.environment.values():
            if Path(name).is_file():
                Path(name).chmod(0o666)
        rig.extra |= {**stub.environment, "WATTLOOP_VIRTUAL_GPUS": "0"}
        yield stub
    shutil.rmtree(folder)


def test_a_user_who_may_set_nothing_sets_a_cap_through_the_daemon(
    rig: DaemonRig, cards: StubNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver refuses the user's own levers; those of the daemon replace them."""
    pytest.importorskip("pynvml")  # before this process becomes a user who may not read its folder
    before = cards.settings(0)
    rig.start()
    monkeypatch.setenv(SOCKET_VARIABLE, str(rig.socket))

    def act() -> tuple[list[str], float, str, str]:
        levers = find_levers(Host(), Settings())
        notes = [lever.state().note for lever in levers if lever.state().available]
        lever = lever_named(levers, LIMIT)
        with lever_session([lever]) as held:
            held.set({LIMIT: 320.0})
            shows = cards.settings(0).limit_w
        local = lever_named(find_levers(Host(), Settings(), remote=False), LIMIT)
        try:
            lever_session([local]).__enter__()
        except LeverError as error:
            return notes, shows, str(error), lever.device
        return notes, shows, "", lever.device

    notes, shows, refusal, device = as_user(NOBODY_UID, act)
    assert len(notes) == 4  # power limit and SM clock of two cards
    assert all("through the control daemon" in note for note in notes)
    assert shows == 320.0
    assert "only root" in refusal
    assert device.startswith(f"daemon:{rig.socket}:nvidia:GPU-")
    assert cards.settings(0) == before


def test_locked_clocks_are_unlocked_when_the_client_is_killed(
    rig: DaemonRig, cards: StubNvml
) -> None:
    """A setting that cannot be read back is restored all the same; a lost card is retried."""
    before = cards.settings(1)
    rig.start()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        client = rig.connect()
        client.set("gpu:1/sm_clock", 1_200.0)
        client.set("gpu:1/power_limit", 400.0)
        os.write(writer, b"x")
        signal.pause()
    os.read(reader, 1)
    assert cards.settings(1) != before
    cards.inject(1, "lost")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert eventually(lambda: len(rig.log("not_restored")) == 2)
    cards.inject(1, "heal")
    assert eventually(lambda: cards.settings(1) == before)
    assert eventually(lambda: len(rig.log("mended")) == 2)
    assert eventually(lambda: not rig.journals())
