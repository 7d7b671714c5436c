"""Model files: what a GGUF header says, what a model costs in memory, and the file that `--draft` means.

Called by `cli`, `http` and `supervisor`. Calls `conversion`. Starts no engine.
"""
