"""Entry point of the command line: errors become messages and exit codes."""

import errno
import io
import os
import sys
from typing import Any

from wattloop.cli.output import TerminalText, say, set_quiet
from wattloop.core.errors import CommandError, WattloopError

USAGE_ERROR = 2
UNEXPECTED_ERROR = 70
"""EX_SOFTWARE of sysexits.h: a fault of ours, told apart from the user's own mistakes."""
INTERRUPTED = 130
CLOSED_PIPE = 141
"""128 + SIGPIPE, what a shell reports for `yes | head`."""

PLACES = {
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM), "name another place, or allow this user to use it"
    ),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room, or name another place"),
    **dict.fromkeys(
        (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EROFS),
        "name another place",
    ),
}
"""What is wrong with a place and no fault of ours, and what to do about it."""
LONGEST_SHOWN = 200


def main(arguments: list[str] | None = None) -> int:
    """Run one command line; return the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    _prepare_output()
    set_quiet(False)
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = TerminalText.around(sys.stdout), TerminalText.around(sys.stderr)
    try:
        return _main(words)
    finally:
        sys.stdout, sys.stderr = before


def _main(words: list[str]) -> int:
    try:
        return _flushed(_run_verb(words))
    except SystemExit as end:
        # typer and rich exit with 1 when the reader of their output has closed it
        left = isinstance(end.__context__, BrokenPipeError)
        return _silenced() if left else _flushed(_code(end.code))
    except CommandError as error:
        say(f"wattloop: {error}", is_error=True)
        return error.exit_code
    except WattloopError as error:
        say(f"wattloop: {error}", is_error=True)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _silenced()
    except OSError as error:
        remedy = PLACES.get(error.errno or 0)
        if remedy is None:
            return _unexpected(error)
        say(f"wattloop: {_shortened(error.filename)}: {error.strerror}; {remedy}", is_error=True)
        return USAGE_ERROR
    except Exception as error:  # noqa: BLE001 - the last line of defence against tracebacks
        return _unexpected(error)


def _run_verb(words: list[str]) -> int:
    """Start `run` without typer where possible: importing typer takes longer than measuring."""
    if words[:1] == ["run"]:
        from wattloop.cli.commands.run.execution import execute, quick

        parsed = quick(words[1:])
        if parsed is not None:
            return execute(*parsed)
    import typer

    from wattloop.cli.app import app

    command = typer.main.get_command(app)
    if os.environ.get("_WATTLOOP_COMPLETE") == "complete_bash":
        from wattloop.cli.completion import bash_words_joined

        with bash_words_joined(os.environ):
            command(args=words, prog_name="wattloop")
    else:
        command(args=words, prog_name="wattloop")
    return 0


def _prepare_output() -> None:
    """Replace a closed standard output, and escape characters that it cannot encode.

    Python sets `surrogateescape` in the C locale, which does not help with them.
    """
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    elif isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in (
        "strict",
        "surrogateescape",
    ):
        sys.stdout.reconfigure(errors="backslashreplace")


def _code(code: Any) -> int:
    if code is None:
        return 0
    return code if isinstance(code, int) else USAGE_ERROR


def _flushed(code: int) -> int:
    """Flush standard output; a closed pipe is noticed only with the last bytes."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        return _silenced()
    return code


def _silenced() -> int:
    """Redirect standard output to /dev/null, so that Python does not complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return CLOSED_PIPE


def _shortened(name: object) -> str:
    text = os.fsdecode(name) if isinstance(name, str | bytes) else "standard output or a file"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def _unexpected(error: Exception) -> int:
    if os.environ.get("WATTLOOP_DEBUG") == "1":
        import traceback

        traceback.print_exception(error)
    else:
        say(
            f"wattloop: unexpected {type(error).__name__}: {error}\n"
            "This is a fault of wattloop, not yours. Please report it with the output of the same "
            "command under WATTLOOP_DEBUG=1.",
            is_error=True,
        )
    return UNEXPECTED_ERROR


if __name__ == "__main__":
    sys.exit(main())
