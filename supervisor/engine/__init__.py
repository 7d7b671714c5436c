"""One engine: its process, its pipes, its client, and what keeps it running.

Called by `scheduling` and `service`. Calls `luce.protocol`. Knows one engine, no other and no policy among requests.
"""
