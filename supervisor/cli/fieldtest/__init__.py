"""supervisor/cli/fieldtest: `luce fieldtest`, which measures what a machine does with a model, for a page that others
read.

`command` is the command line, `run` goes through the steps of a `volume` within a time, `parts` names them and says how
each ended. `exactness`, `speeds`, `agent` and `drafting` measure one part each, the last three at a server that
`serving` starts; `machine` and `model_file` say what was measured. `report` is the file's shape, `privacy` what must
not stand in it, `markdown` its page. Called by cli/app. Calls cli/bench, cli/checking and luce.supervisor.checking.
"""
