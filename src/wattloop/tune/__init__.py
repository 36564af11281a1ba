"""Searches: settings that reach the same quality for less energy.

- `parameters`, `space`, `objective`  what may be chosen, and what makes one choice better
- `segment`     a stretch of training that a strategy asks for
- `progress`    what came of it: energy, time, quality epoch by epoch, or why there is none
- `problem`     what is searched, for what, within which limits
- `strategy`    the contract of every strategy: ask, tell, resume
- `strategies`  one file each
"""
