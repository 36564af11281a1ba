"""Promises of `errors`: one tree, and messages with what, where and what next."""

import inspect

from wattloop.core import errors
from wattloop.core.errors import MeterUnavailable, StoreError, WattloopError


def public_errors() -> set[str]:
    return {
        name for name, value in vars(errors).items() if inspect.isclass(value) and name[0] != "_"
    }


def test_every_public_error_is_ours() -> None:
    """Users can catch WattloopError and nothing escapes it."""
    classes = public_errors()
    assert len(classes) > 10
    assert all(issubclass(getattr(errors, name), WattloopError) for name in classes)


def test_every_error_stands_in_the_drawn_tree() -> None:
    """The docstring on top of the file shows all of them."""
    assert errors.__doc__ is not None
    assert all(name in errors.__doc__ for name in public_errors())


def test_refusal_says_who_why_and_what_to_do() -> None:
    """Meter, reason and remedy in one line."""
    refusal = MeterUnavailable("rapl", "x is not readable", "run chmod", parts=("cpu",))
    assert str(refusal) == "rapl: x is not readable; run chmod"
    assert str(MeterUnavailable("rapl", "no zone")) == "rapl: no zone"


def test_store_errors_share_a_parent() -> None:
    """One except for all of them."""
    for name in ("StoreUnwritable", "StoreTooNew", "StoreLocked", "RunNotFound"):
        assert issubclass(getattr(errors, name), StoreError)
