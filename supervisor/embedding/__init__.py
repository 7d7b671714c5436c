"""Vectors of texts, and how well documents fit a query: each model behind an engine of its own.

Called by `supervisor` (the module). Calls `engine` and `text`. Knows no HTTP, and nothing of generating.
"""
