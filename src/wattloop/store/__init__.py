"""Store of runs: journals of live runs, a database of finished runs, samples, jobs, exports.

Importing this package loads nothing: live runs need only `journal`, not a database.
"""
