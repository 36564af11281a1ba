"""Promises of `windows`: cheap to open, computed on request, and safe to end anywhere."""

import asyncio
import threading

from wattloop.core.results import WindowResult
from wattloop.measure.window_energy import Window, current_window


class Keeper:
    """A session that counts its requests."""

    def __init__(self) -> None:
        self.ended = 0
        self.resolved = 0

    def window_ended(self, window: Window) -> None:
        self.ended += 1
        window.end_s = 5.0

    def settled(self, end_s: float) -> bool:
        return True

    def resolve(self, window: Window) -> WindowResult:
        self.resolved += 1
        return WindowResult(
            name=window.name,
            window_id=window.window_id,
            parent_id=window.parent_id,
            begin_s=window.begin_s,
            end_s=window.end_s or 9.0,
        )


def window(keeper: Keeper, number: int = 1) -> Window:
    return Window(keeper, number, f"w{number}", 0, 1.0)


def test_energy_is_computed_only_on_request() -> None:
    """Opening and closing a window computes no energy."""
    keeper = Keeper()
    with window(keeper):
        pass
    assert (keeper.ended, keeper.resolved) == (1, 0)


def test_result_of_an_ended_window_is_computed_once() -> None:
    """Later requests get the same result."""
    keeper = Keeper()
    ended = window(keeper).end()
    assert ended.result is ended.result
    assert keeper.resolved == 1


def test_result_of_an_open_window_is_the_one_so_far() -> None:
    """Each request reads again."""
    keeper = Keeper()
    opened = window(keeper)
    assert opened.duration_s == 8.0
    assert opened.duration_s == 8.0
    assert keeper.resolved == 2


def test_ending_twice_reads_once() -> None:
    """The second end changes nothing."""
    keeper = Keeper()
    window(keeper).end().end()
    assert keeper.ended == 1


def test_innermost_window_is_known_and_restored() -> None:
    """Leaving a nested window restores the outer one."""
    keeper = Keeper()
    with window(keeper, 1) as outer:
        with window(keeper, 2) as inner:
            assert current_window() is inner
        assert current_window() is outer
    assert current_window() is None


def test_tasks_and_threads_have_their_own_innermost_window() -> None:
    """A task that waits inside its window does not become the parent of another task's."""
    keeper = Keeper()
    seen: list[bool] = []

    async def work(number: int) -> None:
        with window(keeper, number) as own:
            await asyncio.sleep(0.01)
            seen.append(current_window() is own)

    async def both() -> None:
        await asyncio.gather(work(1), work(2))

    asyncio.run(both())
    with window(keeper):
        thread = threading.Thread(target=lambda: seen.append(current_window() is None))
        thread.start()
        thread.join()
    assert seen == [True, True, True]


def test_window_may_end_in_another_context() -> None:
    """A generator or thread that ends another context's window does no harm."""
    keeper = Keeper()
    opened = window(keeper).__enter__()
    thread = threading.Thread(target=lambda: opened.__exit__(None, None, None))
    thread.start()
    thread.join()
    assert keeper.ended == 1
    opened.__exit__(None, None, None)
    assert keeper.ended == 1


def test_text_of_a_window_says_its_state() -> None:
    """The text is meant for logs."""
    keeper = Keeper()
    assert "open" in repr(window(keeper))
    assert "4 s" in repr(window(keeper).end())
