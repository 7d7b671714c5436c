"""OpenAI's /v1/completions, and llama-server's /completion: text in, text out.

Called by `app`. Calls `openai_shared`, `answering` and `transport`. Knows no other dialect.
"""
