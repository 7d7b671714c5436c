"""OpenAI's /v1/chat/completions: reads a body into an AnswerRequest, writes chunks and completions back.

Called by `app`. Calls `openai_shared`, `answering` and `transport`. Knows no other dialect.
"""
