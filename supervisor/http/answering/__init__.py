"""From an AnswerRequest to its AnswerEvents: have the prompt made, ask the engine, parse the answer.

Called by the dialects through `app_context.Answerer`. Calls `prompts`, `luce.supervisor.service` and
`luce.supervisor.text`. Knows no dialect and no socket.
"""
