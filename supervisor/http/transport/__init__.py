"""Bytes and connections: bodies within limits, server-sent events, slow or absent clients, access, request log.

Called by `app` and the dialects. Knows no dialect and no engine.
"""
