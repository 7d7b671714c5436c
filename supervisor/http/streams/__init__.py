"""Streams that a client can take up again after its connection broke.

Called by transport (answer_stream) and by the dialect that has background responses. Calls transport and, through
app_context, what answers. Knows no dialect's words.
"""
