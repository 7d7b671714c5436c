"""/v1/embeddings and /v1/rerank, with llama-server's /embedding and other names beside them: texts in, numbers out.

Called by `app`. Calls `openai_shared` and `transport`, and the supervisor's embedding models. Knows no other dialect.
"""
