"""supervisor/cli/terminal: `luce chat`, a conversation with a model in the terminal.

`chat` is the command line, `talk` the turns, `commands` what can be typed after a slash, `conversation` what was said
and `branches` the ways it took; `editor` reads what a person types, `screen` shows what comes, `markdown_answer` lays
it out, `miss_words` says why not more came from memory. Called by cli/app. Calls cli/servers and cli/server_client: a
server is all that it knows of models.
"""
