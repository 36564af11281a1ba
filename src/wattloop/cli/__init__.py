"""The command line: one file per verb, each parses, calls and prints.

- `main`      the frame: finds the verb, turns errors into messages and exit codes
- `options`   options that several verbs share, and the settings they make
- `output`    JSON, tables and messages
- `result_view`  how the result of a run looks
- `run`       measure a program
- `runs`      what was measured: list, show, compare, export, import
- `devices`   what can be measured and controlled here
- `watch`     power now
- `idle`      what this machine draws when it does nothing
"""
