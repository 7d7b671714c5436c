"""Small pictures as files, for tests of images: PNG ones that are sound, and those of somebody who means harm."""

from __future__ import annotations

import random
import struct
import zlib


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, seed: int) -> bytes:
    pixels = random.Random(seed)
    rows = b"".join(b"\0" + pixels.randbytes(3 * width) for _ in range(height))
    return png_of(width, height, zlib.compress(rows))


def png_of(width: int, height: int, packed: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def packed_zeros(n_mib: int) -> bytes:
    """What unpacks to so many MiB. One is packed: behind a full flush nothing refers to what came before."""
    packer = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    mib = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    adler32 = (n_mib << 20) % 65521 << 16 | 1
    return b"\x78\xda" + mib * n_mib + b"\x03\x00" + struct.pack(">I", adler32)


SOUND = png(40, 30, 0)
HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "a text": b"no image at all\n",
    "sound": b"\xff\xfb\x90\x44" + bytes(400),
    "cut off": SOUND[: len(SOUND) // 2],
    "a head alone": SOUND[:33],
    "no rows": png_of(4, 4, b""),
    "no pixels": png_of(0, 4, zlib.compress(b"")),
    "a declared giant": png_of(30_000, 30_000, zlib.compress(b"\0" * 100)),
    "a side too long": png_of(100_000, 1, zlib.compress(b"\0" * 100)),
    "unpacks to 256 MiB": png_of(8, 8, packed_zeros(256)),
    "webp": b"RIFF\x10\0\0\0WEBPVP8 " + bytes(100),
}
