"""Promises of `errors`: one tree, and messages that say what is wrong, where, and what to do."""

import inspect

from wattloop.core import errors
from wattloop.core.errors import MeterUnavailable, StoreError, WattloopError


def public_errors() -> set[str]:
    return {
        name for name, value in vars(errors).items() if inspect.isclass(value) and name[0] != "_"
    }


def test_every_public_error_is_a_wattloop_error() -> None:
    """Users can catch WattloopError, and every error is one."""
    classes = public_errors()
    assert len(classes) > 10
    assert all(issubclass(getattr(errors, name), WattloopError) for name in classes)


def test_every_error_stands_in_the_drawn_tree() -> None:
    """The docstring on top of the module shows all of them."""
    assert errors.__doc__ is not None
    assert all(name in errors.__doc__ for name in public_errors())


def test_refusal_names_meter_reason_and_remedy() -> None:
    """Meter, reason and remedy in one line."""
    refusal = MeterUnavailable("rapl", "x is not readable", "run chmod", parts=("cpu",))
    assert str(refusal) == "rapl: x is not readable; run chmod"
    assert str(MeterUnavailable("rapl", "no zone")) == "rapl: no zone"


def test_store_errors_share_a_parent() -> None:
    """One `except` catches all of them."""
    for name in ("StoreUnwritable", "StoreTooNew", "StoreLocked", "RunNotFound"):
        assert issubclass(getattr(errors, name), StoreError)
