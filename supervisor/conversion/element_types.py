"""The numbers of a tensor in another type: from BF16, F16 or F32 as stored to BF16, Q8_0 or F32 as GGUF has them.

BF16 is no type of numpy: it is the upper half of a float32, here as uint16. Rounding is the gguf library's, which is
that of ggml bit by bit. Knows nothing of files.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType

Bytes = npt.NDArray[np.uint8]

# Beyond these a value would become infinite: half of BF16's last step below float32's end; Q8_0 keeps a 127th as F16.
_LARGEST = {GGMLQuantizationType.BF16: 3.38e38, GGMLQuantizationType.Q8_0: 127 * 65504.0}


class OutputType(Enum):
    """What the matrices of the result are stored in; all else is float32."""

    BF16 = "bf16"
    Q8_0 = "q8_0"

    @property
    def quantization(self) -> GGMLQuantizationType:
        return GGMLQuantizationType[self.name]

    @property
    def file_type(self) -> int:
        return int(LlamaFileType[f"MOSTLY_{self.name}"])


class NotFiniteError(Exception):
    """The tensor holds values that are no numbers, or too large for the type that they should get."""


def quantization_for(shape: tuple[int, ...], output_type: OutputType, *, keep_float32: bool) -> GGMLQuantizationType:
    """The type of one tensor: vectors stay float32, and rows that are no whole blocks of Q8_0 become BF16."""
    if len(shape) < 2 or keep_float32:
        return GGMLQuantizationType.F32
    block, _ = GGML_QUANT_SIZES[output_type.quantization]
    return output_type.quantization if shape[-1] % block == 0 else GGMLQuantizationType.BF16


def stored_bytes(n_elements: int, quantization: GGMLQuantizationType) -> int:
    block, block_bytes = GGML_QUANT_SIZES[quantization]
    return n_elements // block * block_bytes


def convert_elements(raw: Bytes, element_type: str, quantization: GGMLQuantizationType) -> Bytes:
    """A whole number of rows, as they are stored and as they are to be. Raises NotFiniteError."""
    if element_type == "BF16":
        halves = raw.view("<u2")
        if bool(np.any((halves & 0x7F80) == 0x7F80)):
            raise NotFiniteError
        if quantization is GGMLQuantizationType.BF16:
            return raw
        values = (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)
    else:
        values = raw.view("<f2" if element_type == "F16" else "<f4").astype(np.float32)
        if not bool(np.isfinite(values).all()):
            raise NotFiniteError
    if quantization is GGMLQuantizationType.F32:
        return values.view(np.uint8)
    block, _ = GGML_QUANT_SIZES[quantization]
    if bool(np.any(np.abs(values) > _LARGEST[quantization])):
        raise NotFiniteError
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # 1 / d of blocks of denormals
        converted: Any = quants.quantize(values.reshape(-1, block if block > 1 else values.size), quantization)
    return np.ascontiguousarray(converted).view(np.uint8).reshape(-1)
