"""luce.supervisor.text: a model's vocabulary, its chat template, and the reading of its answers.

Wraps the native library luce_text. Knows nothing of engines, processes or HTTP.
"""

from luce.supervisor.text.answer import (
    AnswerMessage,
    AnswerParser,
    ContentDelta,
    Delta,
    FinishedAnswer,
    ReasoningDelta,
    ToolCall,
    ToolCallDelta,
)
from luce.supervisor.text.chat import (
    ChatMessage,
    Delimiter,
    MessageMark,
    RenderedChat,
    Thinking,
    Trigger,
    schema_to_grammar,
)
from luce.supervisor.text.detokenizer import Detokenizer, StopMatch, StopStrings
from luce.supervisor.text.errors import (
    BadRequestError,
    ClosedError,
    ModelLoadError,
    NoVocabularyError,
    SchemaError,
    TemplateError,
    TextError,
)
from luce.supervisor.text.model import TemplateInfo, TextModel
from luce.supervisor.text.vocabulary import SpecialToken, VocabularyInfo

__all__ = [
    "AnswerMessage",
    "AnswerParser",
    "BadRequestError",
    "ChatMessage",
    "ClosedError",
    "ContentDelta",
    "Delimiter",
    "Delta",
    "Detokenizer",
    "FinishedAnswer",
    "MessageMark",
    "ModelLoadError",
    "NoVocabularyError",
    "ReasoningDelta",
    "RenderedChat",
    "SchemaError",
    "SpecialToken",
    "StopMatch",
    "StopStrings",
    "TemplateError",
    "TemplateInfo",
    "TextError",
    "TextModel",
    "Thinking",
    "ToolCall",
    "ToolCallDelta",
    "Trigger",
    "VocabularyInfo",
    "schema_to_grammar",
]
