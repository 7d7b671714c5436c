"""supervisor/evaluating/transcripts: what Claude Code and Codex write down of their sessions, as requests with their
recorded answers.

`transcript_files` finds and reads files, `claude_transcript` and `codex_transcript` know one format each,
`conversation` is what they have in common, `made_up` stands in for what no file has. Knows no model and no engine.
"""

from luce.supervisor.evaluating.transcripts.conversation import (
    IMAGE,
    NO_RESULT,
    Client,
    Kind,
    Message,
    Session,
    ToolCall,
    Turn,
    system_as_user,
    to_messages,
)
from luce.supervisor.evaluating.transcripts.made_up import made_up_system, tools_of
from luce.supervisor.evaluating.transcripts.transcript_files import (
    MAX_LINE_BYTES,
    find_transcripts,
    read_session,
    read_transcript,
)

__all__ = [
    "IMAGE",
    "MAX_LINE_BYTES",
    "NO_RESULT",
    "Client",
    "Kind",
    "Message",
    "Session",
    "ToolCall",
    "Turn",
    "find_transcripts",
    "made_up_system",
    "read_session",
    "read_transcript",
    "system_as_user",
    "to_messages",
    "tools_of",
]
