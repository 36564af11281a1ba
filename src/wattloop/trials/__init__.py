"""The one runner that sweeps, the cap finder and searches share.

- `trial`    what is tried
- `outcome`  what came of it: time, energy by scope, peaks, temperatures, or why there is none
- `runner`   holds the levers, sets them, runs and measures, writes everything down
- `measured` one trial measured, whole or `inner_window`: within what the program itself marks
- `process`  a program in a group of its own, ended as a whole when its time is over
- `limits`   the same for our own code: its time, and signals that ask us to stop
- `claim`    one process per experiment; what a dead one left running is ended
- `peaks`    highest power and temperatures from the readings of a run
- `status_now`  how far an experiment is, also after a kill
"""
