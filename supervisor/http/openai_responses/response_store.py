"""Responses that are kept for a while: for previous_response_id, and for those who ask for one again.

In memory only, bounded by bytes: of the API key that has most, what has not been asked for longest goes first, and
everything goes with the server. A response is seen only by the API key that it was made with. Pure.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_OVERHEAD_BYTES = 1024  # the record itself and its id
_ITEM_BYTES = 256  # an item's entry among those that can be referred to


@dataclass(frozen=True, slots=True)
class KeptResponse:
    id: str
    client: str
    previous: str | None
    items: bytes
    """What this request added to the conversation, as JSON."""
    response: bytes
    item_ids: tuple[str, ...] = ()
    """Of its output."""

    @property
    def n_bytes(self) -> int:
        return len(self.items) + len(self.response) + _OVERHEAD_BYTES + _ITEM_BYTES * len(self.item_ids)

    def input_items(self) -> list[Any]:
        items: list[Any] = json.loads(self.items)
        return items

    def output_items(self) -> list[Any]:
        items: list[Any] = json.loads(self.response)["output"]
        return items


class KeptResponses:
    def __init__(self) -> None:
        self._kept: OrderedDict[str, KeptResponse] = OrderedDict()  # the longest unused first
        self._owners: dict[str, str] = {}  # of output items: the response that each came with
        self._client_bytes = Counter[str]()
        self.n_bytes = 0

    def keep(self, response: KeptResponse, *, limit_bytes: int) -> None:
        """One that is larger than the limit by itself is not kept."""
        if response.n_bytes > limit_bytes:
            return
        self.drop(response.id)
        self._kept[response.id] = response
        self._owners.update(dict.fromkeys(response.item_ids, response.id))
        self._count(response.client, response.n_bytes)
        while self.n_bytes > limit_bytes:
            ((client, _),) = self._client_bytes.most_common(1)
            self.drop(next(kept.id for kept in self._kept.values() if kept.client == client))

    def find(self, name: str, client: str) -> KeptResponse | None:
        kept = self._kept.get(name)
        if kept is None or kept.client != client:
            return None
        self._kept.move_to_end(name)
        return kept

    def drop(self, name: str) -> None:
        kept = self._kept.pop(name, None)
        if kept is not None:
            self._count(kept.client, -kept.n_bytes)
            for item in kept.item_ids:
                del self._owners[item]

    def _count(self, client: str, n_bytes: int) -> None:
        self.n_bytes += n_bytes
        self._client_bytes[client] += n_bytes
        if self._client_bytes[client] == 0:
            del self._client_bytes[client]

    def referred(self, items: Sequence[Any], client: str) -> list[Any]:
        """The items, with those that are kept in place of references to them."""
        return [self._referred(item, client) for item in items]

    def _referred(self, item: Any, client: str) -> Any:
        if not isinstance(item, dict) or item.get("type") != "item_reference":
            return item
        name = item.get("id")
        owner = self.find(self._owners.get(name, ""), client) if isinstance(name, str) else None
        return item if owner is None else next(one for one in owner.output_items() if one["id"] == name)

    def conversation(self, name: str, client: str) -> list[Any] | None:
        """All items up to and with this response; None where a link of it is not here any more."""
        turns: list[KeptResponse] = []
        link: str | None = name
        while link is not None:
            turn = self.find(link, client)
            if turn is None:
                return None
            turns.append(turn)
            link = turn.previous
        return [item for turn in reversed(turns) for item in (*turn.input_items(), *turn.output_items())]


def encode_items(items: Sequence[Any]) -> bytes:
    """Items that came without an id get one: those who list them want it."""
    named = [
        item if not isinstance(item, dict) or item.get("id") else {**item, "id": f"msg_{secrets.token_hex(16)}"}
        for item in items
    ]
    return json.dumps(named, separators=(",", ":")).encode("ascii")
