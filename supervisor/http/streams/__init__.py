"""Streams that a client can take up again after its connection broke.

Called by transport (answer_stream), by the dialect that has background responses, and by the one that has several
answers in a stream. Calls transport and, through
app_context, what answers. Knows no dialect's words.
"""
