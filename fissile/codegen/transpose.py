"""Blocks of elements exchanged in registers: lanes that lie apart, whose neighbours lie together.

In: one stored vector per column with a lane for every row, or an access of lanes that are a constant step apart. Out:
the rows, read or written as whole vectors. Invariant: only elements that some lane accesses are written, and only
those between the first and the last one of a row are read; values keep their bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fissile.codegen.emitter import Emitter
from fissile.codegen.text import memory_text
from fissile.ir.dtype import DType

PART = 16  # bytes within which an x86 unpack moves elements


@dataclass(frozen=True)
class _Vector:
    """A vector of chunks; `rows[t]` says which row chunk t belongs to."""

    text: str
    rows: tuple[int, ...]


def rows_of(
    e: Emitter, columns: Sequence[str], dtype: DType, lanes: int
) -> list[tuple[str, int]]:
    """For every lane, the vector that holds its element of each column side by side, and where they start.

    columns: at most `lanes` stored vectors. log2(columns) rounds of unpacking.
    """
    size = 1 << (len(columns) - 1).bit_length()
    padded = [*columns, *["poison"] * (size - len(columns))]
    groups = [[_Vector(text, tuple(range(lanes)))] for text in padded]
    chunk = 1
    while chunk < size:
        pairs = zip(groups[::2], groups[1::2], strict=True)
        groups = [_merged(e, left, right, dtype, lanes, chunk) for left, right in pairs]
        chunk *= 2
    places = {r: (v.text, t * size) for v in groups[0] for t, r in enumerate(v.rows)}
    return [places[lane] for lane in range(lanes)]


def _merged(
    e: Emitter, left: list[_Vector], right: list[_Vector], dtype: DType, lanes: int, chunk: int
) -> list[_Vector]:
    """Chunks of twice the size: those of `right` behind those of `left`, row by row."""
    per = max(1, min(lanes, PART // dtype.bytes) // chunk)  # chunks in a part of a register
    half, count = per // 2, lanes // chunk
    if per > 1:
        low = [g + t for g in range(0, count, per) for t in range(half)]
        picks = (low, [t + half for t in low])
    else:
        picks = (list(range(0, count, 2)), list(range(1, count, 2)))
    merged = []
    for chosen in picks:
        for a, b in zip(left, right, strict=True):
            lane = [t * chunk + i + s for t in chosen for s in (0, lanes) for i in range(chunk)]
            text = shuffled(e, a.text, b.text, lane, dtype, lanes)
            merged.append(_Vector(text, tuple(a.rows[t] for t in chosen)))
    return merged


def columns_of(e: Emitter, rows: Sequence[str], dtype: DType, count: int) -> list[str]:
    """For each of `count` columns, the vector of its element in every row; a row is a vector of `count`.

    The number of rows is a power of two and not below `count`.
    """
    size = 1 << (count - 1).bit_length()
    wide = [_resized(e, row, dtype, count, size) for row in rows]
    blocks = [
        [text for text, _ in rows_of(e, wide[first : first + size], dtype, size)]
        for first in range(0, len(wide), size)
    ]
    while len(blocks) > 1:
        pairs = zip(blocks[::2], blocks[1::2], strict=True)
        blocks = [
            [shuffled(e, x, y, list(range(2 * size)), dtype, size) for x, y in zip(a, b, strict=True)]
            for a, b in pairs
        ]
        size *= 2
    return blocks[0][:count]


def picked(e: Emitter, text: str, dtype: DType, lanes: int, start: int, count: int) -> str:
    """`count` neighbours of a stored vector; the element itself where it is one."""
    kind = memory_text(dtype, lanes)
    if count == 1:
        return e.code.pure(f"extractelement {kind} {text}, i64 {start}", text)
    if (start, count) == (0, lanes):
        return text
    return shuffled(e, text, "poison", list(range(start, start + count)), dtype, lanes)


def _resized(e: Emitter, text: str, dtype: DType, count: int, size: int) -> str:
    if count == size or text == "poison":
        return text
    lane = [*range(count), *[-1] * (size - count)]
    return shuffled(e, text, "poison", lane, dtype, count)


def shuffled(
    e: Emitter, a: str, b: str, chosen: Sequence[int], dtype: DType, lanes: int
) -> str:
    """The chosen elements of two stored vectors laid end to end; -1: any."""
    if a == b == "poison":
        return "poison"
    kind = memory_text(dtype, lanes)
    mask = ", ".join("i32 poison" if i < 0 else f"i32 {i}" for i in chosen)
    step = f"shufflevector {kind} {a}, {kind} {b}, <{len(chosen)} x i32> <{mask}>"
    return e.code.pure(step, a, b)
