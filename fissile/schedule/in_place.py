"""Rows of a left operand that are read where they are, instead of from a copy of a block of rows (DESIGN 3.5).

In: an element of the operand. Out: `InPlace`, or None where rows have to be copied. A tile reads the tensor itself, a
matrix row by row, the window of a convolution run by run: nothing is gained by a copy but where rows lie too evenly.
Invariant: the same elements in the same order, so the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from fissile.ir import loop as L
from fissile.ir.affine import Affine, Space
from fissile.ir.dim import DimLike, equal
from fissile.orchestrate.follow import Index

_FAR = 2048  # rows that are a multiple of so many bytes apart fall into few sets of a cache


@dataclass(frozen=True)
class InPlace:
    """Element k = run * r + c of row m is buffer[start + pitch * m + step * r + c].

    start: of row 0, or of row m where `pitch` is None: then it depends on m in a way that is not linear.
    """

    buffer: L.Buffer
    start: L.Expr
    pitch: L.Expr | None
    runs: DimLike
    run: DimLike
    step: L.Expr


def in_place(
    space: Space, value: L.Expr, row: L.Var, taps: Index
) -> InPlace | None:
    """How to read the left operand in place: `value`, its element at row `row` and reduction indices `taps`.

    None where something is computed, converted or padded on the way, or where a copy of the rows lies better.
    """
    if not isinstance(value, L.Load) or value.dtype is not value.buffer.dtype:
        return None
    address = space.affine(value.index[0])
    loops = [t for t in taps if isinstance(t, L.Var)]
    for atom, _ in address.terms:
        if atom not in loops and any(t in L.walk(atom) for t in loops):
            return None
    runs = _runs(space, address, loops)
    if runs is None:
        return None
    count, run, step = runs
    rest = [(a, c) for a, c in address.terms if a not in loops]
    pitch = address.coefficient(row)
    linear = [(a, c) for a, c in rest if a is not row]
    if any(row in L.walk(a) for a, _ in linear) or equal(pitch, 0) is True:
        start = space.build(Affine(address.constant, tuple(rest)))
        return InPlace(value.buffer, start, None, count, run, space.extent(step))
    if not isinstance(pitch, int) or pitch * value.dtype.bytes % _FAR == 0:
        return None
    start = space.build(Affine(address.constant, tuple(linear)))
    return InPlace(value.buffer, start, space.extent(pitch), count, run, space.extent(step))


def _runs(
    space: Space, address: Affine, loops: list[L.Var]
) -> tuple[DimLike, DimLike, DimLike] | None:
    """(runs, elements of one, from one to the next) of the elements of a row, None where they are not so regular."""
    parts = [(space.ranges[t], address.coefficient(t)) for t in loops]
    parts = [(extent, step) for extent, step in parts if equal(extent, 1) is not True]
    run: DimLike = 1
    while parts and equal(parts[-1][1], run) is True:
        run = run * parts.pop()[0]
    if not parts:
        return 1, run, 0
    step = parts[-1][1]
    count: DimLike = 1
    while parts and equal(parts[-1][1], step * count) is True:
        count = count * parts.pop()[0]
    return None if parts else (count, run, step)
