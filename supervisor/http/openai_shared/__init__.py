"""What OpenAI's endpoints have in common: fields, shapes of usage and logprobs, serving a stream.

Called by the OpenAI dialects. Calls `answering` and `transport`.
"""
