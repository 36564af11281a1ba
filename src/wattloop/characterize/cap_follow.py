"""Steps from the meter of a training, and so from any framework's callback."""

from collections.abc import Callable
from typing import Any

from wattloop.integrations.hook import TrainingMeter

__all__ = ["follow"]


def follow(
    meter: TrainingMeter,
    *,
    begin: Callable[[], object],
    step: Callable[[], object],
    interrupt: Callable[[], object],
    end: Callable[[], object],
) -> None:
    """Call these beside the meter's own: after its begin and steps, before its end."""
    meters = {name: getattr(meter, name) for name in ("begin", "step_end", "interrupt", "end")}

    def begun() -> Any:
        result = meters["begin"]()
        begin()
        return result

    def stepped(*args: Any, **kwargs: Any) -> None:
        meters["step_end"](*args, **kwargs)
        step()

    def interrupted() -> None:
        meters["interrupt"]()
        interrupt()

    def ended(*args: Any, **kwargs: Any) -> Any:
        end()
        return meters["end"](*args, **kwargs)

    # On the one object: frameworks call the methods of the meter they were given.
    for name, method in (
        ("begin", begun),
        ("step_end", stepped),
        ("step_done", stepped),
        ("interrupt", interrupted),
        ("end", ended),
    ):
        setattr(meter, name, method)
