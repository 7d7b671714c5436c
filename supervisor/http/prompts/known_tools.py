"""KnownTools: the tools of earlier requests as templates see them. An agent sends the same with each turn, tens of
kilobytes of schemas. Knows no template.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from luce.supervisor.http.prompts.conversation_memo import exact_bytes
from luce.supervisor.http.prompts.message_normalizer import normalise_tools
from luce.supervisor.text import ChatTools

_MAX_KNOWN = 32


class KnownTools:
    """The latest used. Any thread may use it."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, bytes], ChatTools] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, tools: Sequence[Mapping[str, Any]], owner: str) -> ChatTools | None:
        """`owner`: in whose name they are kept. None: there are none."""
        if not tools:
            return None
        exact = exact_bytes(tools)
        if exact is None:
            return ChatTools(normalise_tools(tools))
        with self._lock:
            found = self._known.pop((owner, exact), None)
        if found is None:
            found = ChatTools(normalise_tools(tools))
        with self._lock:
            self._known[owner, exact] = found
            while len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        return found
