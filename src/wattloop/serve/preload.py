"""Background loading of the libraries that pages need, at the start of the server."""

import gc
import threading
from contextlib import suppress

from wattloop.core.errors import WattloopError
from wattloop.schedule.estimates.oracle_service import OracleService


def warm_up(oracle: OracleService | None = None) -> threading.Thread:
    """Load them in the background, so that the first search page need not wait for scikit-learn.

    Args:
        oracle: loaded first: users who submit a job wait for it.
    """

    def load() -> None:
        if oracle is not None:
            with suppress(WattloopError):  # the next query reports the error
                oracle.warm_up()
        _load()
        # libraries stay: Python's collector need not look at them every few answers
        gc.collect()
        gc.freeze()

    thread = threading.Thread(target=load, name="wattloop-warm-up", daemon=True)
    thread.start()
    return thread


def _load() -> None:
    with suppress(ImportError):  # pages that need what is not installed say so themselves
        import altair
        import sklearn.cluster
        import sklearn.decomposition
        import sklearn.metrics
        import statsmodels.api

        from wattloop.serve.pages.assets import vega_text

        vega_text()
        # the first chart loads the schema; the others do not
        altair.Chart(altair.Data(values=[{"x": 1}])).mark_point().encode(x="x:Q").to_dict()
        del sklearn, statsmodels
