"""KnownTools: the tools of earlier requests, as templates see them and as calls are held to them. An agent sends the
same with each turn, tens of kilobytes of schemas. Knows no template.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from luce.supervisor.http.prompts.conversation_memo import exact_bytes
from luce.supervisor.http.prompts.enforced_schemas import EnforcedSchema, EnforcedSchemas
from luce.supervisor.http.prompts.message_normalizer import normalise_tools
from luce.supervisor.text import ChatTools

_MAX_KNOWN = 32


@dataclass(frozen=True, slots=True)
class OfferedTools:
    shown: ChatTools
    schemas: tuple[EnforcedSchema, ...]


class KnownTools:
    """The latest used. Any thread may use it."""

    def __init__(self, schemas: EnforcedSchemas) -> None:
        self._schemas = schemas
        self._known: OrderedDict[tuple[str, bytes], OfferedTools] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, tools: Sequence[Mapping[str, Any]], owner: str) -> OfferedTools | None:
        """`owner`: in whose name they are kept. None: there are none."""
        if not tools:
            return None
        exact = exact_bytes(tools)
        if exact is None:
            return self._make(tools)
        with self._lock:
            found = self._known.pop((owner, exact), None)
        if found is None:
            found = self._make(tools)
        with self._lock:
            self._known[owner, exact] = found
            while len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        return found

    def _make(self, tools: Sequence[Mapping[str, Any]]) -> OfferedTools:
        schemas = self._schemas.of_tools(tools)
        shown = normalise_tools(tools)
        for tool, schema in zip(shown, schemas, strict=True):
            tool["function"]["enforced"] = schema.compiled.shape
        return OfferedTools(ChatTools(shown), schemas)
