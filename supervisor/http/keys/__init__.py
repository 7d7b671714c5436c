"""API keys: who they are, what each may do and how much of it.

Called by app, server, transport, answering and endpoints that compute no answer. Calls nothing of http but errors and
settings. Knows no dialect.
"""
