"""What can go wrong on the wire, and whose fault it is.

The codes are the daemon's stable error codes. The exceptions name the guilty side, as seen from whoever uses the codec:
remote, when the bytes that came in break the protocol; local, when we were asked to send what the protocol cannot say.
This module must not know any command or reply.
"""

from __future__ import annotations

from enum import StrEnum


class ErrorCode(StrEnum):
    BAD_ARGS = "bad_args"
    UNKNOWN_COMMAND = "unknown_command"
    LINE_TOO_LONG = "line_too_long"
    NO_SUCH_FILE = "no_such_file"
    BAD_PROMPT_FILE = "bad_prompt_file"
    EMPTY_PROMPT = "empty_prompt"
    PROMPT_TOO_LONG = "prompt_too_long"
    TOKEN_OUT_OF_RANGE = "token_out_of_range"
    BAD_SLOT = "bad_slot"
    EMPTY_SLOT = "empty_slot"
    PREFIX_MISMATCH = "prefix_mismatch"
    UNSUPPORTED = "unsupported"
    BAD_GRAMMAR = "bad_grammar"
    NO_DRAFT = "no_draft"
    BUSY = "busy"
    QUEUE_FULL = "queue_full"
    DUPLICATE_ID = "duplicate_id"
    UNKNOWN_ID = "unknown_id"
    NO_STREAM_FD = "no_stream_fd"
    PARKED = "parked"
    OUT_OF_MEMORY = "out_of_memory"
    NO_ROOM = "no_room"
    IO_ERROR = "io_error"
    BAD_SNAPSHOT = "bad_snapshot"
    BAD_IMAGE = "bad_image"
    CANCELLED = "cancelled"
    START_FAILED = "start_failed"
    INTERNAL = "internal"


class ProtocolError(Exception):
    """The protocol was broken; the subclass says by whom."""


class LocalProtocolError(ProtocolError):
    """We were about to send something that the protocol cannot express."""


class RemoteProtocolError(ProtocolError):
    """The other side sent something that is not in the protocol."""
