"""SchemaDocument: where references of a schema lead: `#`, JSON pointers, `$id` and `$anchor`. Fetches nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

Schema = Mapping[str, Any] | bool
_DATA = frozenset({"const", "enum", "default", "examples", "required", "description", "title"})
"""Keywords whose values are no schemas, whatever they look like."""


@dataclass(frozen=True, slots=True)
class Place:
    """A schema, where it stands, and the URI that its references start from."""

    schema: Schema
    pointer: str = ""
    base: str = ""

    def at(self, *path: str | int) -> Place:
        """What stands further in."""
        schema: Any = self.schema
        for step in path:
            schema = schema[step]
        pointer = self.pointer + "".join(f"/{_escaped(str(step))}" for step in path)
        return Place(schema, pointer, _base(schema, self.base))


class SchemaDocument:
    def __init__(self, root: Schema) -> None:
        self.root = Place(root, "", _base(root, ""))
        self._resources: dict[str, Place] = {"": self.root}
        self._anchors: dict[str, Place] = {}
        for place in _schemas_in(self.root):
            if not isinstance(place.schema, Mapping):
                continue
            if isinstance(place.schema.get("$id", place.schema.get("id")), str):
                self._resources.setdefault(place.base, place)
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(anchor := place.schema.get(keyword), str):
                    self._anchors.setdefault(f"{place.base}#{anchor}", place)

    def find(self, reference: str, base: str) -> Place | None:
        """None: it leads nowhere, or out of the schema."""
        if reference.startswith("#"):
            address, fragment = base, reference[1:]
        else:
            address, fragment = urldefrag(_joined(base, reference))
        resource = self._resources.get(address)
        if not fragment or resource is None:
            return resource
        if not fragment.startswith("/"):
            return self._anchors.get(f"{address}#{unquote(fragment)}") or self._anchors.get(f"#{unquote(fragment)}")
        return _pointed(resource, fragment)


def _pointed(resource: Place, fragment: str) -> Place | None:
    place = resource
    for step in unquote(fragment).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        schema = _content(place)
        key: str | int = name
        if isinstance(schema, list):
            if not (name.isascii() and name.isdigit()) or int(name) >= len(schema):
                return None
            key = int(name)
        elif not isinstance(schema, Mapping) or name not in schema:
            return None
        place = place.at(key)
    return place if isinstance(_content(place), Mapping | bool) else None


def _schemas_in(root: Place) -> Iterator[Place]:
    """All objects that may be schemas, without recursion: a schema may be deep."""
    left = [root]
    while left:
        place = left.pop()
        schema = _content(place)
        if isinstance(schema, Mapping):
            yield place
            left += [place.at(key) for key, part in schema.items() if key not in _DATA and _is_container(part)]
        elif isinstance(schema, list):
            left += [place.at(number) for number, part in enumerate(schema) if _is_container(part)]


def _content(place: Place) -> object:
    """On the way to a schema there are lists too."""
    return place.schema


def _is_container(value: object) -> bool:
    return isinstance(value, Mapping | list)


def _base(schema: Any, base: str) -> str:
    if not isinstance(schema, Mapping):
        return base
    name = schema.get("$id", schema.get("id"))
    if not isinstance(name, str) or name.startswith("#"):
        return base
    return urldefrag(_joined(base, name))[0]


def _joined(base: str, reference: str) -> str:
    try:
        return reference if base.startswith("urn:") or not base else urljoin(base, reference)
    except ValueError:
        return reference


def _escaped(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")
