"""Grids of points that an affine map makes of the places of an image: AffineGrid.

In: matrices theta and the size of an image. Out: points in the coordinates that GridSample reads. Invariant: one
product of all places with every matrix.
"""

from __future__ import annotations

from fissile.fission.build import (
    add,
    apply,
    broadcast,
    concat,
    const,
    div,
    extent_scalar,
    filled,
    iota,
    matmul,
    mul,
    reshape,
    select,
    sub,
    transpose,
    unsqueeze,
)
from fissile.fission.table import Call, fission
from fissile.fission.values import known_list
from fissile.ir.dim import DimLike, product
from fissile.ir.graph import Node
from fissile.ir.primitive import cast


@fission("AffineGrid")
def affine_grid(call: Call, theta: Node, size: Node) -> Node:
    """theta[N, r, r + 1] at the places of an image of `size` [N, C, D1..Dr]: points [N, D1..Dr, r], last axis first."""
    spatial = known_list(size, "the size of a grid")[2:]
    rank, corners = len(spatial), bool(call.attr("align_corners", 0))
    columns = []
    for k, n in reversed([*enumerate(spatial)]):
        shape = (*[1] * k, n, *[1] * (rank - 1 - k), 1)
        columns.append(broadcast(reshape(_unit_places(n, corners, theta), shape), (*spatial, 1)))
    ones = filled(1, theta.dtype, (*spatial, 1))
    points = concat([*columns, ones], rank)
    flat = reshape(points, (product(spatial), rank + 1))
    found = matmul(unsqueeze(flat, [0]), transpose(theta, (0, 2, 1)))
    return reshape(found, (theta.shape[0], *spatial, rank))


def _unit_places(n: DimLike, corners: bool, like: Node) -> Node:
    """n places from -1 to 1: corners, or the middles of n cells; the corner of one place alone is its middle."""
    places, one = cast(iota(n), like.dtype), const(1, like)
    count = extent_scalar(n, like.dtype)
    if not corners:
        return sub(div(add(mul(places, const(2, like)), one), count), one)
    spans = apply("max", sub(count, one), one)
    placed = sub(div(mul(places, const(2, like)), spans), one)
    return select(apply("gt", count, one), placed, const(0, like))
