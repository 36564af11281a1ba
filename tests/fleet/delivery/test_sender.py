"""Promises of delivery: once, in order, and nothing is deleted that is not in the store."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed")

from tests.fleet.delivery.served import Served, begin, end_of, sample, served, whole
from wattloop.core.errors import ConfigError, StoreError
from wattloop.fleet.delivery import DeliveryOptions, deliver
from wattloop.fleet.delivery.client import ServerRefuses, ServerUnavailable
from wattloop.fleet.delivery.sender import Sender
from wattloop.store.journal import JournalWriter
from wattloop.store.runs import find_run, list_runs
from wattloop.store.sample_queries import read_samples
from wattloop.store.samples import find_series

RUN, OTHER = "20260101-000000-aaaaaa", "20260101-000001-bbbbbb"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as found:
        yield found


def samples_of(site: Served, run_id: str) -> int:
    """Return the number of samples in the store."""
    store = site.state.store
    record = find_run(store, run_id)
    return len(read_samples(store, run_id, find_series(record.feeds, "gpu:0"))[0])


def rounds(sender: Sender, count: int = 4) -> None:
    for _ in range(count):
        sender.round()


def test_finished_journals_are_deleted_when_they_are_in_the_store(site: Served) -> None:
    """And not left behind: with the energies that the node found."""
    whole(site.outbox, RUN)
    whole(site.outbox, OTHER, samples=5)
    done = deliver(site.options(), once=True)
    assert (done.stored, done.left) == (2, 0)
    assert not list(site.outbox.glob("*.journal"))
    assert (samples_of(site, RUN), samples_of(site, OTHER)) == (11, 5)
    assert find_run(site.state.store, RUN).energy_j == 1_000.0


def test_a_journal_that_grows_is_followed_to_its_end(site: Served) -> None:
    """The dashboard shows it meanwhile; it stays until its end is in the store."""
    writer = begin(site.outbox, RUN, samples=3)
    sender = Sender(site.options())
    rounds(sender)
    assert [p.stem for p in site.state.ingest.parts()] == [RUN]
    for number in range(3, 8):
        sample(writer, number)
        sender.round()
    assert list_runs(site.state.store) == []
    writer.end(end_of())
    writer.close()
    give_up_s = time.monotonic() + 300
    while list(site.outbox.glob("*.journal")):
        assert time.monotonic() < give_up_s, "the journal is still in the outbox"
        sender.round()
    assert samples_of(site, RUN) == 8


def test_lost_answers_and_new_senders_change_nothing(site: Served) -> None:
    """A sender that is killed after each request, its answer unread: every sample once."""
    writer = begin(site.outbox, RUN)
    for number in range(20):
        sample(writer, number)
        sender = Sender(site.options())  # knows nothing, as after kill -9
        rounds(sender, 1 + number % 3)
        if number % 2:  # the answer to a piece that was taken is lost
            sender._offsets[f"{RUN}.journal"] = 0
            sender.round()
        sender.close()
    writer.end(end_of())
    writer.close()
    deliver(site.options(), once=True)
    assert samples_of(site, RUN) == 20


def test_half_a_frame_is_not_sent_because_its_writer_may_cut_it_off(site: Served) -> None:
    """An agent that was killed during a write continues after the last whole frame."""
    writer = begin(site.outbox, RUN, samples=4)
    path = site.outbox / f"{RUN}.journal"
    writer.close()
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"\x50\x00\x00\x00half of a frame")
    sender = Sender(site.options())
    rounds(sender)
    assert site.state.ingest.parts()[0].stat().st_size == size
    again = JournalWriter.reopened(path)
    assert again is not None
    sample(again, 4)
    again.end(end_of())
    again.close()
    rounds(sender)
    assert samples_of(site, RUN) == 5


def test_a_node_that_lost_power_and_bytes_sends_its_journal_anew(site: Served) -> None:
    """The server has bytes that never reached the node's disk: what is there now counts."""
    writer = begin(site.outbox, RUN, samples=6)
    path = site.outbox / f"{RUN}.journal"
    kept = path.read_bytes()
    sample(writer, 6, power_w=111.0)
    rounds(Sender(site.options()))
    writer.close()
    path.write_bytes(kept)
    again = JournalWriter.reopened(path)
    assert again is not None
    for number in range(6, 9):
        sample(again, number, power_w=99.0)
    again.end(end_of())
    again.close()
    deliver(site.options(), once=True)
    record = find_run(site.state.store, RUN)
    _, values = read_samples(site.state.store, RUN, find_series(record.feeds, "gpu:0"))
    assert list(values) == [100.0] * 6 + [99.0] * 3


def test_a_writer_that_never_comes_back_leaves_a_run_that_died(site: Served) -> None:
    """A restarted agent may continue it; after a while it ends with the energy of its samples."""
    begin(site.outbox, RUN, samples=11).close()
    sender = Sender(site.options())
    rounds(sender)
    assert (site.outbox / f"{RUN}.journal").exists()
    old_s = time.time() - 700
    os.utime(site.outbox / f"{RUN}.journal", (old_s, old_s))
    rounds(sender, 6)
    record = find_run(site.state.store, RUN)
    assert (record.status, record.energy_j) == ("died", pytest.approx(1_000.0))
    assert not list(site.outbox.glob("*.*"))


def test_what_the_server_will_never_take_is_set_aside_with_the_reason(site: Served) -> None:
    """It does not stand in the way of the others, and nothing is deleted."""
    whole(site.outbox, RUN, host="another-node")
    whole(site.outbox, OTHER)
    done = deliver(site.options(), once=True)
    assert (done.stored, done.refused) == (1, 1)
    aside = site.outbox / "refused" / f"{RUN}.journal"
    assert aside.exists()
    assert "another node" in (aside.parent / f"{RUN}.journal.txt").read_text()


def test_nothing_is_lost_while_nobody_answers(site: Served) -> None:
    """Neither a server that is away nor one that refuses the token costs a byte."""
    whole(site.outbox, RUN)
    before = (site.outbox / f"{RUN}.journal").read_bytes()
    with pytest.raises(ServerUnavailable):
        deliver(site.options(url="http://127.0.0.1:9"), once=True)
    with pytest.raises(ServerRefuses, match="401"):
        deliver(site.options(token="wrong"), once=True)
    assert (site.outbox / f"{RUN}.journal").read_bytes() == before


def test_a_store_that_is_away_does_not_stop_delivery(
    site: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs wait on the server's disk; their journals stay on the node until they are stored."""
    ingest = site.state.ingest
    with monkeypatch.context() as patched:

        def away(*_: object) -> None:
            raise StoreError("cannot be reached")

        patched.setattr("wattloop.store.ingest.uploads.insert_journal", away)
        patched.setattr("wattloop.store.ingest.uploads.has_run", away)
        whole(site.outbox, RUN)
        sender = Sender(site.options())
        rounds(sender)
        assert ingest.parts()[0].stat().st_size == (site.outbox / f"{RUN}.journal").stat().st_size
    ingest._away_until_s = 0.0
    assert ingest.complete() == [RUN]
    assert ingest.import_run(RUN).ended
    assert (site.outbox / f"{RUN}.journal").exists()
    deliver(site.options(), once=True)
    assert not list(site.outbox.glob("*.journal"))
    assert samples_of(site, RUN) == 11


def test_one_sender_a_folder(site: Served) -> None:
    """A second one says so instead of doing everything twice."""
    stopped: list[bool] = []

    def second(_: object) -> None:
        with pytest.raises(ConfigError, match="another process delivers"):
            deliver(site.options(), once=True)
        stopped.append(True)

    deliver(site.options(), once=True, report=second)
    assert stopped == [True]


@pytest.mark.parametrize(
    "wrong", [{"url": "ftp://head"}, {"node": "../n1"}, {"every_s": 0.0}, {"limit_b": -1}]
)
def test_options_that_cannot_work_are_refused(wrong: dict[str, object], tmp_path: Path) -> None:
    """Before anything is sent."""
    usual: dict[str, object] = {"url": "http://head:1", "node": "n1", "folder": tmp_path}
    with pytest.raises(ConfigError):
        DeliveryOptions(**{**usual, **wrong})  # type: ignore[arg-type] # wrong on purpose


@pytest.mark.parametrize(("mode", "is_good"), [(0o600, True), (0o640, True), (0o644, False)])
def test_a_secret_that_everybody_reads_is_not_used(
    tmp_path: Path, mode: int, is_good: bool
) -> None:
    """Any user of the node could write runs in its name: said, with the command that mends it."""
    file = tmp_path / "n1.token"
    file.write_text("secret\n")
    file.chmod(mode)
    options = DeliveryOptions(url="http://head:1", node="n1", folder=tmp_path, token_file=file)
    if is_good:
        assert options.secret() == "secret"
    else:
        with pytest.raises(ConfigError, match="chmod 600"):
            options.secret()
