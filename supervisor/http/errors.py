"""ApiError: why a client does not get what it asked for, in no dialect's words; and what others' errors mean to it.

A dialect puts it into its own shape. `code` is stable; the text says what to change.
"""

from __future__ import annotations

from enum import Enum, unique

from luce.supervisor.requests import (
    DeadlineError,
    EngineFailedError,
    EngineKillerError,
    PromptTooLongError,
    QueueFullError,
    RequestError,
    RequestRefusedError,
    SupervisorClosedError,
)
from luce.supervisor.text import (
    BadRequestError,
    ModelLoadError,
    NoVocabularyError,
    SchemaError,
    TemplateError,
    TextError,
)


@unique
class ErrorKind(Enum):
    """A name, because two kinds may be equal in all else; status code; the words of either API for its `type`."""

    INVALID = ("invalid", 400, "invalid_request_error", "invalid_request_error")
    CONTEXT_FULL = ("context_full", 400, "invalid_request_error", "invalid_request_error")
    UNAUTHENTICATED = ("unauthenticated", 401, "authentication_error", "authentication_error")
    FORBIDDEN = ("forbidden", 403, "permission_error", "permission_error")
    NOT_FOUND = ("not_found", 404, "not_found_error", "not_found_error")
    METHOD = ("method", 405, "invalid_request_error", "invalid_request_error")
    TIMEOUT = ("timeout", 408, "timeout_error", "timeout_error")
    TOO_LARGE = ("too_large", 413, "invalid_request_error", "request_too_large")
    OVERLOADED = ("overloaded", 429, "rate_limit_error", "rate_limit_error")
    SERVER = ("server", 500, "server_error", "api_error")
    UNSUPPORTED = ("unsupported", 501, "invalid_request_error", "invalid_request_error")
    UNAVAILABLE = ("unavailable", 503, "server_error", "overloaded_error")

    def __init__(self, word: str, status: int, openai_type: str, anthropic_type: str) -> None:
        self.word = word
        self.status = status
        self.openai_type = openai_type
        self.anthropic_type = anthropic_type


class ApiError(Exception):
    def __init__(
        self,
        kind: ErrorKind,
        code: str,
        text: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        n_prompt: int | None = None,
        n_ctx: int | None = None,
    ) -> None:
        """`param` names the field of the request; `n_prompt` and `n_ctx` are given with CONTEXT_FULL (tokens)."""
        super().__init__(text)
        self.kind = kind
        self.code = code
        self.text = text
        self.param = param
        self.retry_after_s = retry_after_s
        self.n_prompt = n_prompt
        self.n_ctx = n_ctx


def api_error(error: RequestError | TextError) -> ApiError:
    """What an error of the supervisor or of the text layer is to a client."""
    match error:
        case PromptTooLongError():
            return ApiError(
                ErrorKind.CONTEXT_FULL,
                "context_length_exceeded",
                str(error),
                n_prompt=error.n_prompt,
                n_ctx=error.n_ctx,
            )
        case QueueFullError():
            return ApiError(ErrorKind.OVERLOADED, error.code, str(error), retry_after_s=error.retry_after_s)
        case DeadlineError():
            return ApiError(ErrorKind.TIMEOUT, error.code, str(error))
        case EngineKillerError():
            return ApiError(ErrorKind.SERVER, error.code, str(error))
        case EngineFailedError() | SupervisorClosedError():
            return ApiError(ErrorKind.UNAVAILABLE, error.code, str(error), retry_after_s=10.0)
        case RequestRefusedError():
            is_ours = error.code in {"internal", "out_of_memory", "no_room", "queue_full", "busy", "parked", "io_error"}
            return ApiError(ErrorKind.SERVER if is_ours else ErrorKind.INVALID, error.code, str(error))
        case ModelLoadError():
            return ApiError(ErrorKind.UNAVAILABLE, EngineFailedError.code, str(error))
        case NoVocabularyError():
            return ApiError(ErrorKind.UNSUPPORTED, "no_vocabulary", str(error))
        case SchemaError():
            return ApiError(ErrorKind.INVALID, "bad_schema", str(error))
        case TemplateError() | BadRequestError():
            return ApiError(ErrorKind.INVALID, "bad_messages", str(error))
        case _:
            return ApiError(ErrorKind.SERVER, "internal", str(error))
