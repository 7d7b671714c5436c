"""What can go wrong with a text, by whose fault it is. Knows nothing of the native library."""

from __future__ import annotations


class TextError(Exception):
    """Anything that luce.supervisor.text raises of its own."""


class BadRequestError(TextError):
    """The caller's data cannot be used: messages, tools, JSON, token ids."""


class ModelLoadError(TextError):
    """There is no such model file, or libllama cannot use it."""


class NoVocabularyError(TextError):
    """The model takes and gives token ids only: it has no vocabulary to write text with."""


class TemplateError(TextError):
    """The chat template cannot be used, or it refuses these messages."""


class SchemaError(TextError):
    """The JSON schema has no grammar."""


class ClosedError(TextError):
    """The model, the chat or the parser was used after it was closed."""
