"""luce.protocol: the daemon's wire format, both directions, without I/O.

Lines: LineDecoder cuts bytes into lines; format_command writes what goes to the daemon, parse_reply reads what comes
back and format_reply writes it. Tokens: TokenDecoder and format_event are the token fd's bytes. The contract is
PROTOCOL.md beside this file; commands.json lists the verbs and keys for this codec and the daemon's.
This package must not know processes, sockets or files.
"""

from .command_writer import format_command as format_command
from .commands import MAX_LOGPROBS as MAX_LOGPROBS
from .commands import MAX_MARKS as MAX_MARKS
from .commands import Cancel as Cancel
from .commands import Clear as Clear
from .commands import Command as Command
from .commands import ConstraintArgs as ConstraintArgs
from .commands import DescribeImage as DescribeImage
from .commands import Embed as Embed
from .commands import FreeSlot as FreeSlot
from .commands import Generate as Generate
from .commands import GenerateForm as GenerateForm
from .commands import GrammarTrigger as GrammarTrigger
from .commands import ImageAt as ImageAt
from .commands import ListSlots as ListSlots
from .commands import LoadSlot as LoadSlot
from .commands import MemoryArgs as MemoryArgs
from .commands import MemoryCommand as MemoryCommand
from .commands import Park as Park
from .commands import Ping as Ping
from .commands import PinSpan as PinSpan
from .commands import Quit as Quit
from .commands import SamplerKind as SamplerKind
from .commands import SamplingArgs as SamplingArgs
from .commands import SaveSlot as SaveSlot
from .commands import Snapshot as Snapshot
from .commands import SnapshotPoint as SnapshotPoint
from .commands import Status as Status
from .commands import ThinSnapshot as ThinSnapshot
from .commands import TriggerKind as TriggerKind
from .commands import Unpark as Unpark
from .commands import Weights as Weights
from .errors import ErrorCode as ErrorCode
from .errors import LocalProtocolError as LocalProtocolError
from .errors import ProtocolError as ProtocolError
from .errors import RemoteProtocolError as RemoteProtocolError
from .framing import MAX_LINE_BYTES as MAX_LINE_BYTES
from .framing import DecodedLine as DecodedLine
from .framing import LineDecoder as LineDecoder
from .percent import percent_decode as percent_decode
from .percent import percent_encode as percent_encode
from .replies import Cancelled as Cancelled
from .replies import Embedding as Embedding
from .replies import Err as Err
from .replies import ExpertReads as ExpertReads
from .replies import GenerateOk as GenerateOk
from .replies import ImageDescribed as ImageDescribed
from .replies import InlineSnapshot as InlineSnapshot
from .replies import InlineSnapshotFailed as InlineSnapshotFailed
from .replies import LoadProgress as LoadProgress
from .replies import Logprobs as Logprobs
from .replies import OutOfMemory as OutOfMemory
from .replies import Parked as Parked
from .replies import PlainOk as PlainOk
from .replies import Pong as Pong
from .replies import PoolSize as PoolSize
from .replies import PrefillProgress as PrefillProgress
from .replies import ReadyLine as ReadyLine
from .replies import Reply as Reply
from .replies import SlotFreed as SlotFreed
from .replies import SlotList as SlotList
from .replies import SlotSaved as SlotSaved
from .replies import SnapReply as SnapReply
from .replies import SnapshotTaken as SnapshotTaken
from .replies import Speculation as Speculation
from .replies import StatusLine as StatusLine
from .replies import StopReason as StopReason
from .replies import ThinTaken as ThinTaken
from .replies import UnknownLine as UnknownLine
from .replies import Unparked as Unparked
from .reply_codec import MAX_ERROR_TEXT_BYTES as MAX_ERROR_TEXT_BYTES
from .reply_codec import format_reply as format_reply
from .reply_codec import parse_reply as parse_reply
from .tokens import SENTINEL as SENTINEL
from .tokens import Dialect as Dialect
from .tokens import End as End
from .tokens import Token as Token
from .tokens import TokenDecoder as TokenDecoder
from .tokens import TokenEvent as TokenEvent
from .tokens import format_event as format_event
