"""The command line: one file per verb, each parses, calls and prints.

- `main`      the frame: finds the verb, turns errors into messages and exit codes
- `options`   options that several verbs share, and the settings they make
- `output`    JSON, tables and messages
- `progress`  bars and spinners on standard error
- `VERB`      the options of `wattloop VERB`; files called `VERB_...` belong to it: `_request` turns
  options into a question, `_execute` carries it out, `_view` and `_table` show the answer
"""
