"""Which prefixes the supervisor has sent where, and which of them hold a slot. Pure: no I/O, no clock of its own.

Called by `scheduling`. Calls nothing of the supervisor.
"""
