"""From an AnswerRequest to its prompt: ids, what its answer may be, where other prompts may part from it.

Called by `answering`; the dialects make its AnswerRequest. Calls `luce.supervisor.text`. Knows no dialect, no engine
and no answer on its way.
"""
