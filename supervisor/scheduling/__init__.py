"""Requests and engines: which request runs where, in which order, and what happens when an engine is lost.

Called by `service`. Calls `prefix_cache` and `engine`. Knows token ids, no text and no HTTP.
"""
