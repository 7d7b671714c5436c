"""Which prefixes the engines hold, and which of them get a slot. Pure: no I/O, no clock of its own.

Called by `scheduling`. Calls nothing of the supervisor.
"""
