"""Promises of `restore`: only leftovers of ended owners, only their own values, within limits."""

import os
from pathlib import Path

import pytest

from tests.control.conftest import Rig
from tests.control.test_session import LIMIT, SLEEPER, is_back
from wattloop.control.journal import (
    Journal,
    JournalEntry,
    journal_files,
    journal_path,
    read_journal,
)
from wattloop.control.lock import Owner
from wattloop.control.restore import RestoreStatus, restore
from wattloop.control.session import lever_session
from wattloop.core.errors import DeviceBusy


def dead_owner(rig: Rig, previous: float = 150.0, ours: float = 90.0, boot: str = "") -> Path:
    """Write the journal of a process that has ended."""
    me = Owner.this_process()
    owner = Owner(2**22 + 1, 1, boot or me.boot_id, "sweep", "root", 0.0)
    lever = rig.lever(LIMIT)
    rig.state.mkdir(exist_ok=True)
    entry = JournalEntry(LIMIT, lever.device, "W", {"": previous})
    journal = Journal.create(journal_path(rig.state, owner), owner, {lever: entry}, lever.where())
    journal.about_to_set({LIMIT: {"": ours}})
    journal.close()
    return journal.path


def test_nothing_to_do(rig: Rig) -> None:
    """Without leftovers nothing happens, even where the folder is missing."""
    assert restore(rig.state) == []
    assert not rig.state.exists()


def test_living_owner_is_left_alone(rig: Rig) -> None:
    """The levers of a running owner stay as they are, and it is named with its lock."""
    owner = rig.start(SLEEPER)
    results = restore(rig.state)
    assert {result.fate for result in results} == {RestoreStatus.IN_USE}
    assert f"process {owner.pid}" in results[0].message
    assert rig.limit_w() == 90
    with pytest.raises(DeviceBusy, match=rf"held by process {owner.pid} \(-c\) of"):
        lever_session([rig.lever(LIMIT)]).__enter__()


def test_somebody_elses_value_is_left_unless_forced(rig: Rig) -> None:
    """A value that is neither Wattloop's nor the previous one stays, unless --force is given."""
    dead_owner(rig)
    rig.put_limit_w(111)
    (result,) = restore(rig.state)
    assert result.fate is RestoreStatus.CHANGED
    assert "is at 111 W" in result.message
    assert rig.limit_w() == 111
    assert len(rig.journals()) == 1
    (result,) = restore(rig.state, force=True)
    assert result.fate is RestoreStatus.RESTORED
    assert rig.limit_w() == 150
    assert rig.journals() == []


def test_forget_keeps_the_present_value(rig: Rig) -> None:
    """`forget` drops the journal and writes nothing."""
    dead_owner(rig)
    rig.put_limit_w(111)
    (result,) = restore(rig.state, forget=True)
    assert result.fate is RestoreStatus.FORGOTTEN
    assert rig.limit_w() == 111
    assert rig.journals() == []


def test_next_session_takes_another_programs_value_as_the_previous_one(rig: Rig) -> None:
    """The last change takes precedence: the next session restores that value."""
    dead_owner(rig)
    rig.put_limit_w(111)
    with lever_session([rig.lever(LIMIT)]) as held:
        assert held.previous == {LIMIT: 111.0}
        held.set({LIMIT: 90.0})
    assert rig.limit_w() == 111
    assert rig.journals() == []


@pytest.mark.parametrize(
    ("present_w", "fate", "after_w"),
    [
        (90, RestoreStatus.RESTORED, 150),
        (150, RestoreStatus.ALREADY, 150),
        (200, RestoreStatus.REBOOTED, 200),
    ],
)
def test_after_a_reboot_only_our_own_value_is_replaced(
    rig: Rig, present_w: float, fate: RestoreStatus, after_w: float
) -> None:
    """The machine's value after the boot is not overwritten, since settings end with the boot."""
    dead_owner(rig, boot="another-boot")
    rig.put_limit_w(present_w)
    (result,) = restore(rig.state)
    assert result.fate is fate
    assert rig.limit_w() == after_w
    assert rig.journals() == []


def test_a_device_that_is_not_there_yet_after_a_reboot_is_kept(rig: Rig) -> None:
    """Its driver may be loaded later; then a value that is still Wattloop's is restored."""
    dead_owner(rig, boot="another-boot")
    rig.put_limit_w(90)
    limit = rig.package / "constraint_0_power_limit_uw"
    limit.rename(limit.with_name("away"))
    (result,) = restore(rig.state)
    assert result.fate is RestoreStatus.ABSENT
    assert "is its driver loaded?" in result.message
    assert len(rig.journals()) == 1
    limit.with_name("away").rename(limit)
    (result,) = restore(rig.state)
    assert result.fate is RestoreStatus.RESTORED
    assert rig.limit_w() == 150
    assert rig.journals() == []


def test_a_device_that_never_comes_back_can_be_forgotten(rig: Rig) -> None:
    """A card that was removed from the machine does not stay in the journal for ever."""
    dead_owner(rig, boot="another-boot")
    (rig.package / "constraint_0_power_limit_uw").unlink()
    assert [result.fate for result in restore(rig.state)] == [RestoreStatus.ABSENT]
    assert [result.fate for result in restore(rig.state, forget=True)] == [RestoreStatus.FORGOTTEN]
    assert rig.journals() == []


def test_previous_value_outside_limits_never_reaches_the_device(rig: Rig) -> None:
    """Limits that have changed since, or a forged journal: reported, not written."""
    dead_owner(rig, previous=900.0)
    rig.put_limit_w(90)
    (result,) = restore(rig.state, force=True)
    assert result.fate is RestoreStatus.FAILED
    assert "outside the device's limits" in result.message
    assert rig.limit_w() == 90
    assert len(rig.journals()) == 1


def test_vanished_device_does_not_stop_the_others(rig: Rig) -> None:
    """The governor is restored although the package is missing, which stays in the journal."""
    owner = rig.start(SLEEPER, WATTLOOP_GUARDIAN="0")
    owner.kill()
    owner.wait()
    limit = rig.package / "constraint_0_power_limit_uw"
    limit.rename(limit.with_name("away"))
    fates = {r.lever: r.fate for r in restore(rig.state)}
    assert fates == {LIMIT: RestoreStatus.FAILED, "cpu/governor": RestoreStatus.RESTORED}
    limit.with_name("away").rename(limit)
    (result,) = restore(rig.state)
    assert result.fate is RestoreStatus.RESTORED
    assert is_back(rig)


def test_dry_run_shows_and_writes_nothing(rig: Rig) -> None:
    """Every write is shown; value and journal stay."""
    dead_owner(rig)
    rig.put_limit_w(90)
    (result,) = restore(rig.state, dry_run=True)
    assert result.fate is RestoreStatus.PLANNED
    assert result.message.startswith("write 150000000 to ")
    assert rig.limit_w() == 90
    assert len(rig.journals()) == 1


def test_damaged_journal_is_said_and_kept(rig: Rig) -> None:
    """A journal with an unreadable beginning is reported with its path, never guessed at."""
    path = dead_owner(rig)
    for file in journal_files(path):
        file.write_bytes(file.read_bytes().replace(b"150.0", b"151.0"))
    (result,) = restore(rig.state)
    assert result.fate is RestoreStatus.FAILED
    assert str(path) in result.message
    assert path.exists()
    restore(rig.state, forget=True)
    assert not path.exists()


def test_journal_survives_a_restore_that_is_killed(rig: Rig) -> None:
    """A part marked as done is not restored again; the rest is."""
    path = dead_owner(rig)
    journal = Journal.take_over(path)
    assert journal is not None
    journal.recorded()
    assert Journal.take_over(path) is None, "one at a time"
    journal.done(LIMIT, "")
    journal.close()
    assert read_journal(path).pending() == []
    assert restore(rig.state) == []
    assert rig.journals() == []


def test_the_same_card_is_found_by_its_device(rig: Rig) -> None:
    """A lever is matched by device, not by number: gpu:0 of the journal may be gpu:1 today."""
    lever = rig.lever("gpu:0/power_limit")
    owner = Owner(2**22 + 1, 1, Owner.this_process().boot_id, "sweep", "root", 0.0)
    rig.state.mkdir()
    entry = JournalEntry("gpu:7/power_limit", lever.device, "W", {"": 300.0})
    journal = Journal.create(journal_path(rig.state, owner), owner, {lever: entry}, lever.where())
    journal.about_to_set({"gpu:7/power_limit": {"": 200.0}})
    journal.close()
    rig.card.put("power1_cap", 200_000_000)
    assert [r.fate for r in restore(rig.state)] == [RestoreStatus.RESTORED]
    assert rig.card.read("power1_cap") == "300000000"


def test_each_policy_is_restored_on_its_own(rig: Rig) -> None:
    """A policy whose file has garbage, or is missing, does not stop the others."""
    owner = rig.start(SLEEPER, WATTLOOP_GUARDIAN="0")
    owner.kill()
    owner.wait()
    rig.cpufreq.policies[1].put("scaling_governor", "")
    fates = {(r.lever, r.part): r.fate for r in restore(rig.state)}
    assert set(fates.values()) == {RestoreStatus.RESTORED}, "garbage is not another user's choice"
    assert is_back(rig)
    owner = rig.start(SLEEPER, WATTLOOP_GUARDIAN="0")
    owner.kill()
    owner.wait()
    policy = rig.cpufreq.policies[0].directory
    policy.rename(policy.with_name("offline"))
    fates = {(r.lever, r.part): r.fate for r in restore(rig.state)}
    assert fates[("cpu/governor", "policy0")] is RestoreStatus.FAILED
    assert rig.cpufreq.policies[1].read("scaling_governor") == "performance"
    policy.with_name("offline").rename(policy)
    assert [r.fate for r in restore(rig.state)] == [RestoreStatus.RESTORED]
    assert is_back(rig)


def test_value_rounded_by_the_device_is_known_again(rig: Rig) -> None:
    """Killed between write and read-back: the journal has 99.99 W, the register shows 99.875 W."""
    dead_owner(rig, ours=99.99)
    rig.put_limit_w(99.875)
    assert [result.fate for result in restore(rig.state)] == [RestoreStatus.RESTORED]
    assert rig.limit_w() == 150


def test_record_after_a_torn_one_is_read(rig: Rig) -> None:
    """A process that continues a journal which ends in half a line begins a new line.

    The half line may have been a setting, so later records are checked again.
    """
    path = dead_owner(rig)
    with path.open("ab") as file:
        file.write(b'12345678 {"set": {"cpu')
    for _ in range(2):
        journal = Journal.take_over(path)
        assert journal is not None
        recorded = journal.recorded()
        assert recorded.damaged == 1
        assert recorded.lost
        assert [entry.name for entry in recorded.pending()] == [LIMIT]
        journal.done(LIMIT, "")
        journal.close()


def test_journal_says_how_its_devices_are_found(rig: Rig) -> None:
    """A program with its own sysfs path in code is restored by one that does not know the path."""
    with lever_session([rig.lever(LIMIT)]):
        (path,) = rig.journals()
        found = read_journal(path).environment["WATTLOOP_SYSFS_ROOT"]
    assert "WATTLOOP_SYSFS_ROOT" not in os.environ
    assert found == str(rig.folder / "sys")
