"""Oracle service: time, power and energy of jobs x placements, for other schedulers."""

from wattloop.schedule.oracle_service.service import AskedJob, OracleService

__all__ = ["AskedJob", "OracleService"]
