"""The window: the page at `/` where people talk to the model and see what the server does and did.

Called by `app` and `transport`. Calls `app_context`, `request_records`, `transport.middleware` and `admin.openapi`.
The page itself is static: what it shows, it asks for.
"""
