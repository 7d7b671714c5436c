"""What operators and tools ask: health, models, slots, tokenizing, how things stand, the OpenAPI document.

Called by `app`. Calls `app_context`, `metrics` and `transport`. Generates nothing.
"""
