"""History: what becomes of what clients repeat, for all dialects.

A client sends its whole conversation each time. What stands in it (earlier calls, results of tools, pictures) cannot be
mended by the client, so a refusal would end the session: it is read as well as it can be. Only the message that the
client sends now is refused. Each reading depends on the item alone, so that the prompt of a turn begins as the one
before did. docs/agents.md has the table. Knows no dialect, no template and no engine.
"""
