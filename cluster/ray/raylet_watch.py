"""Whether the raylet that started this process is gone: for Ray all of its node is gone then, and is started elsewhere.

Ray ends its workers itself, if it learns of it: not where a dead raylet is still in the table of processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable


def raylet_watch() -> Callable[[], bool]:
    """Says from now on whether it is gone."""
    parent = os.getppid()
    is_raylet = os.environ.get("RAY_RAYLET_PID") == str(parent)
    return lambda: is_raylet and os.getppid() != parent
