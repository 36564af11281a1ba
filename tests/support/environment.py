"""The environment of programs that tests start."""

import os


def without(*beginnings: str) -> dict[str, str]:
    """Return the variables of this process, except those whose name begins so.

    The folder in which a test's runs list themselves stays set. Otherwise every program would read
    the runs of all tests, and be marked as sharing the machine with them.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name == "WATTLOOP_NODE_RUNS" or not name.startswith(beginnings)
    }
