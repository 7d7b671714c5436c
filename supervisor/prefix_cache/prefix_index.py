"""PrefixIndex: texts of tokens, found again by their prefixes. Pure.

A radix tree over the tokens' bytes (4 a token, `pack`), so that comparing is the C library's work and the length of a
match is exact to the token. What the values are is the caller's business.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

from luce.supervisor.prefix_cache.page_names import TOKEN_BYTES

V = TypeVar("V")


def pack(tokens: Iterable[int]) -> bytes:
    """Tokens as the keys of an index."""
    ids = tokens if isinstance(tokens, array) and tokens.typecode == "i" else array("i", tokens)
    return ids.tobytes()


def unpack(key: bytes) -> list[int]:
    return memoryview(key).cast("i").tolist()


def common_tokens(a: bytes, b: bytes) -> int:
    """How many tokens two packed texts have in common from their start."""
    high = min(len(a), len(b)) // TOKEN_BYTES
    if a[: high * TOKEN_BYTES] == b[: high * TOKEN_BYTES]:
        return high
    low = 0  # the first `low` are equal, the first `high` are not
    while high - low > 1:
        middle = (low + high) // 2
        if a[low * TOKEN_BYTES : middle * TOKEN_BYTES] == b[low * TOKEN_BYTES : middle * TOKEN_BYTES]:
            low = middle
        else:
            high = middle
    return low


class Match(NamedTuple, Generic[V]):
    n_tokens: int
    value: V


class _Node(Generic[V]):
    """One edge of the tree and what hangs at its end."""

    __slots__ = ("children", "edge", "parent", "value")

    def __init__(self, edge: bytes, parent: _Node[V] | None) -> None:
        self.edge = edge
        self.parent = parent
        self.children: dict[bytes, _Node[V]] = {}
        self.value: V | None = None


class PrefixIndex(Generic[V]):
    """REQUIRES: keys are packed texts; values are not None."""

    def __init__(self) -> None:
        self._root: _Node[V] = _Node(b"", None)
        self._n_entries = 0
        self.n_tokens = 0
        """Of all entries together; what several have in common counts once."""

    def __len__(self) -> int:
        return self._n_entries

    def insert(self, key: bytes, value: V) -> None:
        """In place of what was there."""
        assert len(key) % TOKEN_BYTES == 0
        node, position = self._root, 0
        while position < len(key):
            child = node.children.get(key[position : position + TOKEN_BYTES])
            if child is None:
                child = _Node(key[position:], node)
                node.children[child.edge[:TOKEN_BYTES]] = child
                self.n_tokens += len(child.edge) // TOKEN_BYTES
            else:
                n_shared = common_tokens(child.edge, key[position : position + len(child.edge)]) * TOKEN_BYTES
                if n_shared < len(child.edge):
                    child = self._split(child, n_shared)
            node, position = child, position + len(child.edge)
        self._n_entries += node.value is None
        node.value = value

    def remove(self, key: bytes) -> V | None:
        """What was there."""
        node = self._find(key)
        if node is None or node.value is None:
            return None
        value, node.value = node.value, None
        self._n_entries -= 1
        self._prune(node)
        return value

    def get(self, key: bytes) -> V | None:
        node = self._find(key)
        return None if node is None else node.value

    def matches(self, key: bytes) -> list[Match[V]]:
        """The entries that are a prefix of `key` or all of it, longest first."""
        found = [
            Match(end // TOKEN_BYTES, node.value)
            for node, end, whole in self._path(key)
            if whole and node.value is not None
        ]
        found.reverse()
        return found

    def n_common(self, key: bytes) -> int:
        """How many tokens of `key` are the prefix of some entry, whatever comes after."""
        n_tokens = 0
        for _, end, _ in self._path(key):
            n_tokens = end // TOKEN_BYTES
        return n_tokens

    def n_exclusive(self, key: bytes) -> int:
        """How many tokens no entry would hold any more without this one. REQUIRES: it is there."""
        node = self._find(key)
        assert node is not None
        return 0 if node.children else len(node.edge) // TOKEN_BYTES

    def n_branches(self, key: bytes) -> int:
        """In how many ways other entries go on from this one. REQUIRES: it is there."""
        node = self._find(key)
        assert node is not None
        return len(node.children)

    def check_integrity(self) -> None:
        """Asserts what only a bug of ours can break."""
        n_entries = n_tokens = 0
        nodes = [self._root]
        while nodes:
            node = nodes.pop()
            n_entries += node.value is not None
            n_tokens += len(node.edge) // TOKEN_BYTES
            assert node is self._root or node.value is not None or len(node.children) > 1, "a node without a reason"
            for first, child in node.children.items():
                assert child.parent is node
                assert child.edge[:TOKEN_BYTES] == first
                nodes.append(child)
        assert (n_entries, n_tokens) == (self._n_entries, self.n_tokens)

    def _path(self, key: bytes) -> Iterator[tuple[_Node[V], int, bool]]:
        """The nodes along `key`, where each match ends, and whether all of the node's edge is in `key`."""
        node, position = self._root, 0
        if node.value is not None:
            yield node, 0, True
        while position < len(key):
            child = node.children.get(key[position : position + TOKEN_BYTES])
            if child is None:
                return
            part = key[position : position + len(child.edge)]
            if part != child.edge:
                yield child, position + common_tokens(child.edge, part) * TOKEN_BYTES, False
                return
            node, position = child, position + len(child.edge)
            yield node, position, True

    def _find(self, key: bytes) -> _Node[V] | None:
        if key == b"":
            return self._root
        for node, end, whole in self._path(key):
            if whole and end == len(key):
                return node
        return None

    def _split(self, child: _Node[V], n_bytes: int) -> _Node[V]:
        parent = child.parent
        assert parent is not None
        upper: _Node[V] = _Node(child.edge[:n_bytes], parent)
        parent.children[upper.edge[:TOKEN_BYTES]] = upper
        child.edge = child.edge[n_bytes:]
        child.parent = upper
        upper.children[child.edge[:TOKEN_BYTES]] = child
        return upper

    def _prune(self, node: _Node[V]) -> None:
        """Drop a node that has lost its reason, then join its parent with an only child that is left."""
        parent = node.parent
        if parent is None or node.value is not None:
            return
        if len(node.children) == 1:
            (child,) = node.children.values()
            child.edge = node.edge + child.edge
            child.parent = parent
            parent.children[child.edge[:TOKEN_BYTES]] = child
        elif not node.children:
            del parent.children[node.edge[:TOKEN_BYTES]]
            self.n_tokens -= len(node.edge) // TOKEN_BYTES
            if len(parent.children) == 1:
                self._prune(parent)
