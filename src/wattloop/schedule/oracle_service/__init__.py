"""The oracle as a service: jobs x placements -> time, power, energy, for schedulers of any make."""

from wattloop.schedule.oracle_service.service import AskedJob, OracleService

__all__ = ["AskedJob", "OracleService"]
