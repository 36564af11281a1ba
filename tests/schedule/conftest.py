"""Common parts of the tests of scheduling: a cache of their own, and no time limits."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Property tests check results, not speed: the machine may be busy.
settings.register_profile("schedule", deadline=None, database=None, max_examples=50)
settings.load_profile("schedule")


@pytest.fixture(autouse=True, scope="session")
def cache_of_the_tests(shared_cache: Path) -> Iterator[None]:
    """Keep the stored options of oracles out of the user's folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(shared_cache))
        yield
