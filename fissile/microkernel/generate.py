"""The one tile generator and the one packer (DESIGN 3.5), as loop IR.

`tile` accumulates rows x panels of 16 columns over a stretch of k on registers; `pack_rows` copies rows of the left
operand into private memory; `pack_panels` puts a right operand into panels. Invariant (canonical order, DESIGN 3.8):
an output element is one accumulator, k ascending, one fused multiply-add per term, so sizes and cuts change no bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fissile.ir import loop as L
from fissile.ir.dtype import DType
from fissile.ir.primitive import PANEL
from fissile.target import Target

ROW_PITCH_GAP = 16  # elements added to the pitch of packed rows, so that rows do not share cache sets


@dataclass(frozen=True)
class TileShape:
    """Rows and panels of the full tile, and the rows of the tile that finishes ragged ends."""

    rows: int
    panels: int
    tail_rows: int


def tile_shape(target: Target, element_bytes: int, rows_hint: int | None) -> TileShape:
    """The register tile for a target: accumulators, one row of the panel and a broadcast must fit its registers.

    `rows_hint`: the number of rows when it is known; few rows get a wide tile, others the height that wastes least.
    """
    vectors = max(1, PANEL // target.lanes(element_bytes))  # registers per panel row
    room = target.vector_registers - 3
    if rows_hint is not None and rows_hint <= 4:
        rows = max(1, rows_hint)
        panels = max(1, min(4, room // (vectors * (rows + 1))))
        return TileShape(rows, panels, rows)
    panels = 2 if vectors == 1 else 1
    most = max(1, (room - vectors * panels + 1) // (vectors * panels))
    rows = _least_waste(rows_hint, most)
    return TileShape(rows, panels, max(1, (rows + 1) // 2))


def _least_waste(count: int | None, most: int) -> int:
    """The tile height up to `most` that leaves the fewest idle rows, tall ones first."""
    if count is None:
        return most
    heights = range(most, max(1, most // 2), -1)
    return min(heights, key=lambda h: (-(-count // h) * h, -h))


Read = Callable[[int, L.Expr], L.Expr]


def accumulate(
    rows: int, width: int, left: Read, right: Read, sums: L.Buffer, depth: L.Expr
) -> L.Stmt:
    """for k in depth: sums[i, 16 * p + lane] += left(i, k) * right(p, k), the lanes vectorized

    left(i, k): the scalar of row i. right(p, k): element `lane` (a variable of that name) of row k of panel p.
    sums: a register buffer (rows, width); width: some panels, or a half or quarter of one.
    """
    k, lane = L.var("k"), L.var("lane")
    lanes = min(width, PANEL)
    updates: list[L.Stmt] = []
    for i in range(rows):
        scalar = left(i, k)
        for p in range(width // lanes):
            where = (L.const(i), L.plus(lane, p * PANEL))
            product = fused(scalar, right(p, k), L.Load(sums, where))
            updates.append(
                L.For(lane, L.const(lanes), L.Store(sums, where, product), L.Kind.VECTORIZED)
            )
    return L.For(k, depth, L.block(*updates))


def fused(a: L.Expr, b: L.Expr, c: L.Expr) -> L.Expr:
    """a * b + c: one rounding for floats, wrapping for integers."""
    if c.dtype.is_float:
        return L.op("fma", a, b, c)
    return L.op("add", L.op("mul", a, b), c)


def clear(sums: L.Buffer, rows: int, columns: int, dtype: DType) -> L.Stmt:
    """All accumulators to zero."""
    return fill(sums, rows, columns, lambda i, c: L.const(0, dtype))


def fill(
    sums: L.Buffer, rows: int, columns: int, value: Callable[[int, L.Expr], L.Expr]
) -> L.Stmt:
    """sums[i, c] = value(i, c), row by row."""
    lane = L.var("lane")
    body = [
        L.For(
            lane,
            L.const(columns),
            L.Store(sums, (L.const(i), lane), value(i, lane)),
            L.Kind.VECTORIZED,
        )
        for i in range(rows)
    ]
    return L.block(*body)


def drain(rows: int, columns: int, store: Callable[[int, L.Expr], L.Stmt]) -> L.Stmt:
    """store(i, c) for every accumulator, row by row, columns vectorized."""
    lane = L.var("lane")
    return L.block(
        *(
            L.For(lane, L.const(columns), store(i, lane), L.Kind.VECTORIZED)
            for i in range(rows)
        )
    )


def pack_panels(
    destination: L.Buffer, panel_start: L.Expr, rows: tuple[L.Expr, ...], columns_left: L.Expr,
    read: Callable[[tuple[L.Expr, ...], L.Expr], L.Expr],
) -> L.Stmt:
    """One panel: destination[panel_start + 16 * k + c] = read(k, c), zero beyond the last column.

    rows: extents of k, more than one where reads differ by its parts; all but the first are small, and written out.
    """  # fmt: skip
    k, lane = tuple(L.var(f"k{i}" if i else "k") for i in range(len(rows))), L.var("lane")
    row: L.Expr = k[0]
    for part, extent in zip(k[1:], rows[1:], strict=True):
        row = L.plus(L.times(row, extent), part)
    inside = L.op("lt", lane, columns_left)
    index = (L.plus(L.plus(panel_start, L.times(row, PANEL)), lane),)

    def body(value: L.Expr) -> L.Stmt:
        store = L.Store(destination, index, value)
        nest = L.For(lane, L.const(PANEL), store, L.Kind.VECTORIZED)
        for part, extent in zip(k[:0:-1], rows[:0:-1], strict=True):
            nest = L.For(part, extent, nest, L.Kind.UNROLLED)
        return L.For(k[0], rows[0], nest)

    whole = L.op("ge", columns_left, L.const(PANEL))
    value = read(k, lane)
    ragged = L.op("select", inside, value, L.const(0, destination.dtype.compute))
    return L.If(whole, body(value), body(ragged))
