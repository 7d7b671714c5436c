"""supervisor/cli/checking: `luce check`, which says whether memory, lanes and drafts change an answer.

`command` is the command line, `run` one run with its time and what was found by its end, `report` makes a table and
JSON of findings. Called by cli/app. Calls luce.supervisor.checking, which knows what is checked.
"""
