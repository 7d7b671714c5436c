"""supervisor/cli/watching: `luce ps`, which finds what runs on this machine, `luce top`, which watches a server, and
`luce models`, which lists its models.

`processes` finds servers and engines among the processes, `looking` asks a server what it is, `ps` makes a table of
both; `top` is the loop and the keys, `speeds` compares two looks, `conversations` makes them of the tree of what is
remembered, `board` draws them. Called by cli/app and cli/terminal. Calls cli/server_client: what a server does not say
in /status.json, /memory.json or /v1/models is not known here.
"""
