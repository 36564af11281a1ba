"""Complete runs into the store, without making pieces or pages wait for it."""

import asyncio
from collections.abc import Sequence

from wattloop.core.errors import RunSenseless
from wattloop.serve.house import House

__all__ = ["settled"]

PATIENCE_S = 1.0
"""So long a sender waits for its run to be in the store; later it asks again."""


async def settled(house: House, run_ids: Sequence[str]) -> dict[str, bool | str]:
    """Whether each run is in the store now, or why it never will be; missing is "not yet"."""
    if not run_ids:
        return {}
    work = {asyncio.wrap_future(house.folding.settle(run_id)): run_id for run_id in run_ids}
    done, later = await asyncio.wait(work, timeout=PATIENCE_S)
    for future in later:
        future.add_done_callback(lambda f: f.cancelled() or f.exception())  # said by the ingest
    found: dict[str, bool | str] = {}
    for future in done:
        if future.cancelled():  # the server ends
            continue
        error = future.exception()
        if error is None:
            found[work[future]] = future.result().ended
        elif isinstance(error, RunSenseless):
            found[work[future]] = str(error)
        else:
            raise error
    return found
