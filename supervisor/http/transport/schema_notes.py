"""The header `x-luce-schema-notes`: what of the request's schemas does not hold the answer, before the answer comes.

It must not know schemas, nor who enforces them.
"""

from __future__ import annotations

import json

from aiohttp import web
from aiohttp.typedefs import Handler

from luce.supervisor.http.answering.told_notes import collected_notes
from luce.supervisor.http.prompts.enforced_schemas import AppliedNote

HEADER = "x-luce-schema-notes"
_MAX_BYTES = 4000  # clients and proxies refuse headers that are long
_NOTES = web.RequestKey("schema_notes", dict[AppliedNote, None])


@web.middleware
async def collect_schema_notes(request: web.Request, handler: Handler) -> web.StreamResponse:
    with collected_notes() as notes:
        request[_NOTES] = notes
        return await handler(request)


async def tell_schema_notes(request: web.Request, response: web.StreamResponse) -> None:
    """on_response_prepare. Without reasons, which the body and the log have; as many as there is room for."""
    notes = request.get(_NOTES)
    if not notes:
        return
    told: list[dict[str, str]] = []
    for note in notes:
        told.append({key: text for key, text in note.as_json().items() if key != "reason"})
        if len(json.dumps(told)) > _MAX_BYTES:
            told.pop()
            break
    response.headers[HEADER] = json.dumps(told)
