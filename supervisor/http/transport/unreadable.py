"""What is answered to bytes that never became a request. Nothing is known of them: not even which API they speak.

So the error has the fields of all APIs. It repeats nothing of what came.
"""

from __future__ import annotations

import json
import logging
import secrets
from http import HTTPStatus

from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.transport.error_bodies import openai_error

UNREADABLE = ApiError(
    ErrorKind.INVALID,
    "unreadable_request",
    "The request could not be read: it is not HTTP/1.1, or its headers are malformed or too long.",
)
SLOW_HEAD = ApiError(ErrorKind.TIMEOUT, "slow_head", "The head of the request was not complete in time.")

_log = logging.getLogger("luce.http.access")


def error_text(error: ApiError, where: str) -> str:
    """JSON, also told in the log. `where`: the client's address, and what else may be told of the request."""
    request_id = f"req_{secrets.token_hex(12)}"
    _log.info("%s %s: %d refused %s", request_id, where, error.kind.status, error.code)
    return json.dumps({"type": "error", **openai_error(error), "request_id": request_id})


def error_bytes(error: ApiError, where: str) -> bytes:
    """A whole response, after which the connection is closed."""
    body = error_text(error, where).encode()
    status = HTTPStatus(error.kind.status)
    head = (
        f"HTTP/1.1 {status} {status.phrase}\r\nContent-Type: application/json; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
