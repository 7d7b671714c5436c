"""API keys: who they are, what each may do and how much of it.

Called by app, server, transport, answering, and by endpoints that compute no answer or tell the window. Calls nothing
of http but errors and settings. Knows no dialect.
"""
