"""luce.protocol: the daemon's wire format, both directions, without I/O.

Lines: LineDecoder cuts bytes into lines; parse_command / format_command and parse_reply / format_reply are what stands
on them. Tokens: TokenDecoder and format_event are the token fd's bytes. The contract is PROTOCOL.md beside this file.
This package must not know processes, sockets or files.
"""

from .command_parser import RESERVED_VERBS, VERBS, parse_command
from .command_writer import format_command
from .commands import (
    MAX_LOGPROBS,
    Cancel,
    Command,
    ConstraintArgs,
    Generate,
    GenerateForm,
    GrammarTrigger,
    MemoryArgs,
    Ping,
    PinSpan,
    Quit,
    SamplingArgs,
    SnapshotPoint,
    Status,
    TriggerKind,
)
from .errors import CommandError, ErrorCode, LocalProtocolError, ProtocolError, RemoteProtocolError
from .framing import MAX_LINE_BYTES, DecodedLine, LineDecoder
from .percent import percent_decode, percent_encode
from .replies import (
    Cancelled,
    Err,
    GenerateOk,
    Logprobs,
    PlainOk,
    Pong,
    PrefillProgress,
    ReadyLine,
    Reply,
    StatusLine,
    StopReason,
    UnknownLine,
)
from .reply_codec import MAX_ERROR_TEXT_BYTES, format_reply, parse_reply
from .tokens import SENTINEL, Dialect, End, Token, TokenDecoder, TokenEvent, format_event

__all__ = [
    "MAX_ERROR_TEXT_BYTES",
    "MAX_LINE_BYTES",
    "MAX_LOGPROBS",
    "RESERVED_VERBS",
    "SENTINEL",
    "VERBS",
    "Cancel",
    "Cancelled",
    "Command",
    "CommandError",
    "ConstraintArgs",
    "DecodedLine",
    "Dialect",
    "End",
    "Err",
    "ErrorCode",
    "Generate",
    "GenerateForm",
    "GenerateOk",
    "GrammarTrigger",
    "LineDecoder",
    "LocalProtocolError",
    "Logprobs",
    "MemoryArgs",
    "PinSpan",
    "Ping",
    "PlainOk",
    "Pong",
    "PrefillProgress",
    "ProtocolError",
    "Quit",
    "ReadyLine",
    "RemoteProtocolError",
    "Reply",
    "SamplingArgs",
    "SnapshotPoint",
    "Status",
    "StatusLine",
    "StopReason",
    "Token",
    "TokenDecoder",
    "TokenEvent",
    "TriggerKind",
    "UnknownLine",
    "format_command",
    "format_event",
    "format_reply",
    "parse_command",
    "parse_reply",
    "percent_decode",
    "percent_encode",
]
