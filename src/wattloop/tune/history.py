"""What stored searches found, for programs that read them: analysis, reports, pages.

- `CandidateResult`  one configuration, folded from its segments
- `search_table`     one flat row per configuration
- `SearchSummary`    what the search cost, the best, the default, what is saved
"""

from wattloop.tune.candidate_results import (
    RESULTS,
    CandidateResult,
    candidates_from,
    candidates_of,
    parameter_columns,
)
from wattloop.tune.search_table import quality_of, rows_of, search_table
from wattloop.tune.summary import SearchSummary, summary_of

__all__ = [
    "RESULTS",
    "CandidateResult",
    "SearchSummary",
    "candidates_from",
    "candidates_of",
    "parameter_columns",
    "quality_of",
    "rows_of",
    "search_table",
    "summary_of",
]
