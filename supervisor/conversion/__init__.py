"""luce.supervisor.conversion: a DFlash drafter's Hugging Face checkpoint becomes a GGUF file.

Everything is read from config.json and held against the shapes and types in the safetensors headers before a byte is
written; a checkpoint is not trusted. Knows files, not engines.
"""

from luce.supervisor.conversion.convert import Conversion, Prepared, convert_checkpoint, prepare
from luce.supervisor.conversion.gguf_output import OutputType
from luce.supervisor.conversion.reading import ConversionError

__all__ = ["Conversion", "ConversionError", "OutputType", "Prepared", "convert_checkpoint", "prepare"]
