"""The command lines `luce-daemon` and `luce`: they read arguments, call what lies below and print.

Nothing below may import from here. Heavy imports stand inside the functions that need them, so that `--help` is fast.
"""
