"""Libraries that pages need, loaded while nobody waits for them."""

import threading
from contextlib import suppress

__all__ = ["warm_up"]


def warm_up() -> threading.Thread:
    """Load them in the background: the first reader of a search does not wait for scikit-learn."""
    thread = threading.Thread(target=_load, name="wattloop-warm-up", daemon=True)
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
