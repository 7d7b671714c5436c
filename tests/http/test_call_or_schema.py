"""Tools together with a schema for the answer: a tool is called, or the answer is JSON of the schema, in each API.

The packaged model calls read_file when asked to read a file, and says something else otherwise."""

from __future__ import annotations

from tests.http.asking import answered, answered_by, in_each_talking_api, question, strict_json, tools
from tests.http.serving import Server

READ_IT, WHO = "Read the file src/app.py", "Who are you?"
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["green", "red"]}},
    "required": ["colour"],
    "additionalProperties": False,
}


@in_each_talking_api
def test_a_call_or_json_of_the_schema(server: Server, path: str, streams: bool) -> None:
    fields = {**tools(path, {"read_file": PARAMETERS}), **answered_by(path, SCHEMA)}
    called = answered(server.url, path, question(path, READ_IT, **fields), streams=streams)
    assert (called.content, called.calls) == ("", [("read_file", {"path": "src/app.py"})])
    said = answered(server.url, path, question(path, WHO, **fields), streams=streams)
    assert said.calls == []
    assert strict_json(said.content)["colour"] in {"green", "red"}
