"""Who runs next, where, and under which power limit: one policy per file.

- `policy`    what every policy is.
- `packing`   the loop that most share: score, sort, start what fits.
- `registry`  policies by name and parameters; `foreign` has those of anybody's file or package.
- `ageing`    what waiting is worth.
"""

from wattloop.schedule.policies.base import Policy

__all__ = ["Policy"]
