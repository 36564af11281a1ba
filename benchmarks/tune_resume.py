"""Continue the last search of a store and stop where its next training would begin."""

import sys

from wattloop.core.settings import settings_from
from wattloop.store.database import open_store
from wattloop.tune.search_loop import BudgetSpent
from wattloop.tune.search_setup import resume_search
from wattloop.tune.segment import Progress, Segment


class Begun(BaseException):
    """Raised when the next training is about to begin."""


class Stopping:
    def begins(self, segment: Segment, spent: BudgetSpent) -> None:
        raise Begun(f"{segment.key} after {spent.segments} segments")

    def ended(self, segment: Segment, progress: Progress, spent: BudgetSpent) -> None:
        pass


if __name__ == "__main__":
    import os

    settings = settings_from(os.environ)
    with open_store(settings.store_location) as store:
        try:
            resume_search(None, store, settings, listener=Stopping()).run()
        except Begun as where:
            print(where)
            sys.exit(0)
    sys.exit(1)
