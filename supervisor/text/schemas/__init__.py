"""luce.supervisor.text.schemas: JSON schemas as grammars, and what of them no grammar can hold a model to.

Pure: knows no model, no template and no request.
"""

from luce.supervisor.text.schemas.compiler import CompiledSchema, compile_schema
from luce.supervisor.text.schemas.keywords import is_type
from luce.supervisor.text.schemas.notes import SchemaNote, UnsupportedError
from luce.supervisor.text.schemas.patterns import pattern_grammar
from luce.supervisor.text.schemas.rules import used as rules_used

__all__ = [
    "CompiledSchema",
    "SchemaNote",
    "UnsupportedError",
    "compile_schema",
    "is_type",
    "pattern_grammar",
    "rules_used",
]
