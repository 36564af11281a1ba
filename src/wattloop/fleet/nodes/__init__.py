"""The nodes of a fleet as the server knows them: power now, age, jobs, clock, refusals."""

from wattloop.fleet.nodes.book import STALE_S, NodeBook, NodeNow

__all__ = ["STALE_S", "NodeBook", "NodeNow"]
