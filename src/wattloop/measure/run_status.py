"""How a run ended, by what ended its block."""

from wattloop.core.results import RunStatus

__all__ = ["status_after"]


def status_after(error: BaseException | None) -> RunStatus:
    """A generator that is closed early has not failed, nor has `sys.exit(0)`."""
    if error is None or isinstance(error, GeneratorExit):
        return RunStatus.FINISHED
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return RunStatus.FINISHED
    return RunStatus.FAILED
