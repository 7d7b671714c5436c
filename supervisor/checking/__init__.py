"""luce.supervisor.checking: does an engine keep what the daemon promises, on this machine and with this model? The
checks of `luce check`.

`finding`, `same_tokens`, `chi_square` and `divergence` compare and know no engine; the others start engines and ask.
Called by cli. Calls the engine's client and process, the text side and luce.protocol.
"""
