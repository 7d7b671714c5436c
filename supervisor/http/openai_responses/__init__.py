"""OpenAI's /v1/responses: items in, items out, and the responses that are stored.

Called by `app`. Calls `openai_shared`, `answering` and `transport`. Knows no other dialect.
"""
