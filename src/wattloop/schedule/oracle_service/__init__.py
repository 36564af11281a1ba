"""The oracle as a service: jobs x placements -> time, power, energy, for schedulers of any make.

where       placements as others name them, or all that a fleet has
priced_job  what is to be run, from the caller's fields, a comment, rules, history or a time limit
workload_prices
            traced models, kept; thousands of placements of one at once
prices      a price for each pair, or why it has none
table_prices
            the same on the machines of a fleet whose oracle is a table
answer      all of it as plain data, with the best placement of each job
service     what is kept between questions
"""

from wattloop.schedule.oracle_service.service import AskedJob, OracleService

__all__ = ["AskedJob", "OracleService"]
