"""supervisor/cli/evaluation: `luce eval`, which says whether a model answers rightly.

`command` is the command line, `task_choice` what is asked, `sides` who is asked, `asking` asks in sight and says how
long it takes, `report` makes tables and JSON of results, `plot` a picture. Called by cli/app. Calls
luce.supervisor.evaluating, which knows questions and answers, and cli/servers: everything is asked through HTTP, as a
client would.
"""
