"""supervisor/cli/bench: `luce bench`, which says what a machine, or a server, does.

`command` is the command line, `measure` asks servers and keeps the clock, `report` makes tables and JSON of samples,
`plot` a picture. Called by cli/app. Calls cli/servers and cli/server_client, and knows no engine: everything is
measured through HTTP, as a client sees it.
"""
