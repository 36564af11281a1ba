"""Policies x seeds on a scenario: carried out over processes, kept, compared.

- `campaign`  what is to be simulated: cells, each a policy on a seed
- `running`   carrying it out: resumable, nothing computed twice
- `summary`   what it says: means, deviations, paired differences
- `whatif`    the same jobs in two worlds
"""

from wattloop.schedule.campaigns.campaign import Campaign
from wattloop.schedule.campaigns.cell import PolicyChoice
from wattloop.schedule.campaigns.running import Listener, run_campaign
from wattloop.schedule.campaigns.summary import Summary, by_variant, summary_of

__all__ = [
    "Campaign",
    "Listener",
    "PolicyChoice",
    "Summary",
    "by_variant",
    "run_campaign",
    "summary_of",
]
