"""From joules of a window to what they mean. Pure functions over plain data.

Records here are named tuples: they cost a fifth of a dataclass to define, and there are many.

- `line`           least squares of a straight line, with the uncertainty of what it predicts
- `idle`           idle lines and application energy (measured minus idle)
- `idle_store`     idle lines kept per machine
- `node`           what nobody measures (fans, board, power supply), as a stated model
- `facility`       node energy times PUE
- `carbon`         carbon intensity for a run, and grams of CO2e
- `carbon_series`  the user's own intensities by time
- `carbon_live`    a live provider asked by URL
- `cost`           tariff times energy
- `equivalents`    familiar equivalents, each with its source
- `efficiency`     energy over TDP x time, and its label
- `insights`       what an efficiency says, in plain words
- `slope`          joules per second of runtime, per device, over several runs
- `summary`        all of it for one window
- `summary_line`   the line that fits a log
"""
