"""From an AnswerRequest to its AnswerEvents: render the prompt, ask the engine, parse the answer.

Called by the dialects through `app_context.Answerer`. Calls `luce.supervisor.service` and `luce.supervisor.text`.
Knows no dialect and no socket.
"""
