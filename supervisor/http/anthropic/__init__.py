"""Anthropic's /v1/messages: reads a body into an AnswerRequest, writes events and messages back.

Called by `app`. Calls `answering` and `transport`. Knows no other dialect.
"""
