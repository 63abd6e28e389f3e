"""Formats a plan gives to tensors: operands of linear primitives in panels; outputs as tensors of their own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fissile.ir import loop as L
from fissile.ir.affine import Space
from fissile.ir.dim import equal, exact_div, product
from fissile.ir.dtype import BFLOAT16
from fissile.ir.graph import Graph, Node, make, map_graph, users
from fissile.ir.primitive import (
    BROADCAST,
    COLUMNS,
    PANEL,
    PANELS,
    RESHAPE,
    TRANSPOSE,
    cast,
    flatten,
    pack,
    packed_extents,
)
from fissile.ir.scalar import from_bfloat16
from fissile.orchestrate.follow import Index
from fissile.orchestrate.plan import is_constant

TABLE_BYTES = 1 << 18  # from which on a table is worth a look whether it is stored in panels anyway
NARROW = 4  # columns up to which a panel is mostly padding
NARROW_DEPTH = (
    256,
    4096,
)  # depths worth it: the final sum over lanes is then small, a block of rows stays near


def is_tiled(node: Node) -> bool:
    """Whether a linear primitive runs on register tiles: all but convolutions of one channel per group."""
    if node.name == "matmul":
        return True
    if node.name != "conv":
        return False
    channels = node.inputs[1].shape[-2]
    return node.attr("groups") == 1 or equal(channels, 1) is not True


def pack_operands(graph: Graph) -> Graph:
    """Every tiled linear primitive reads its right operand from panels; a table that is one, too, is stored once."""

    def change(node: Node) -> Node | None:
        if not is_tiled(node) or node.inputs[1].name == "pack":
            return None
        a, b = node.inputs
        batch, groups = (b.type.rank - 2, 1) if node.name == "matmul" else (0, node.attr("groups"))
        b = _once(b, batch) if node.name == "matmul" else b
        packed = pack(b, batch, groups, COLUMNS if _is_narrow(b, batch, groups) else PANELS)
        return make(node.primitive, a, packed, **dict(node.attrs))

    return _share_tables(map_graph(graph, change))


def _share_tables(graph: Graph) -> Graph:
    """Rows of a constant table are gathered from panels where a product reads the same values from those.

    Such are tied embeddings: the panels are of the table, or of its transpose. A gathered element is then one of a line
    of memory that has 15 others, which is little beside the product.
    """
    nodes = graph.nodes()
    readers = users(nodes)
    outputs = {node for _, node in graph.outputs}
    panels: dict[tuple[object, ...], list[Node]] = {}
    for node in nodes:
        if node.name == "pack" and node.inputs[0].name == "constant" and _is_plain_panels(node):
            panels.setdefault((node.dtype, node.shape), []).append(node)
    shared: dict[Node, Node] = {}
    for table in nodes if panels else ():
        if table not in outputs and _is_table(table) and all(_picks(r, table) for r in readers[table]):
            found = _stored_in(table, panels)
            if found is not None:
                shared[table] = found

    def change(node: Node) -> Node | None:
        if node.name != "gather" or node.inputs[0] not in shared:
            return None
        picked = make(node.primitive, shared[node.inputs[0]], node.inputs[1], **dict(node.attrs))
        return cast(picked, node.dtype)

    return map_graph(graph, change) if shared else graph


def _is_plain_panels(node: Node) -> bool:
    return (node.type.format, node.attr("batch"), node.attr("groups")) == (PANELS, 0, 1)


def _is_table(node: Node) -> bool:
    """Whether a constant is a matrix large enough for its second copy to matter."""
    if node.name != "constant" or node.type.rank != 2:
        return False
    size = node.dtype.bytes * math.prod(d for d in node.shape if isinstance(d, int))
    return size >= TABLE_BYTES


def _picks(reader: Node, table: Node) -> bool:
    """Whether a node reads single rows or columns of the table, or holds it in panels."""
    return reader.name == "pack" or (reader.name == "gather" and reader.inputs[1] is not table)


def _stored_in(table: Node, panels: Mapping[tuple[object, ...], Sequence[Node]]) -> Node | None:
    """What has the values of the table and reads them from panels; None where no panels have them.

    Products of half types read float32, which a table in a half type becomes without loss, and back.
    """
    bits, of = _bits(table), table.dtype.compute
    for packed in panels.get((of, table.shape), ()):
        if packed.inputs[0] is table or np.array_equal(_bits(packed.inputs[0]), bits):
            return packed
    for packed in panels.get((of, table.shape[::-1]), ()):
        if np.array_equal(_bits(packed.inputs[0]).T, bits):
            return make(TRANSPOSE, packed, perm=(1, 0))
    return None


def _bits(node: Node) -> np.ndarray:
    """The elements in the type they are computed in, as integers, so that NaNs are compared, too."""
    array: np.ndarray = node.attr("value").array
    if node.dtype is BFLOAT16:
        array = from_bfloat16(array)
    array = array.astype(node.dtype.compute.numpy, copy=False)
    return array.view(f"u{array.dtype.itemsize}")


def _once(b: Node, batch: int) -> Node:
    """A right operand without what is repeated along batch axes: those are 1, and every matrix is packed once."""
    if b.primitive is not BROADCAST:
        return b
    small = b.inputs[0]
    have = (1,) * (b.type.rank - small.type.rank) + small.shape
    want = tuple(1 if a < batch and equal(d, 1) is True else b.shape[a] for a, d in enumerate(have))
    source = small if small.shape == have else make(RESHAPE, small, shape=have)
    return source if have == want else make(BROADCAST, source, shape=want)


def shares_right(node: Node) -> bool:
    """Whether several matrices of a matmul's left operand meet the same one of its right operand."""
    pairs = zip(node.shape[:-2], node.inputs[1].shape[:-2], strict=True)
    return any(right == 1 and equal(left, 1) is not True for left, right in pairs)


def _is_narrow(b: Node, batch: int, groups: int) -> bool:
    """Whether a constant operand is better summed along its columns (the named variant `lane_sums`).

    It has so few columns that most of a panel would be padding, and each of its matrices is deep enough.
    """
    columns, depth = b.shape[-1], product(b.shape[batch:-1])
    if not (isinstance(columns, int) and isinstance(depth, int) and is_constant(b)):
        return False
    few = columns <= NARROW and NARROW_DEPTH[0] <= depth <= NARROW_DEPTH[1]
    return few and groups == 1 and b.dtype.is_float


def panel_address(space: Space, node: Node, at: Index) -> L.Expr:
    """Offset in elements of the element `at` of a tensor in panels (see `fissile.ir.primitive.pack_array`)."""
    batch, groups = node.attr("batch"), node.attr("groups")
    matrices, panels, depth, _ = packed_extents(node)
    matrix, column = flatten(at[:batch], node.shape[:batch], space.extent), at[-1]
    if groups > 1:
        width = space.extent(node.shape[-1] // groups)
        matrix = L.plus(L.times(matrix, groups), L.quotient(column, width))
        column = L.remainder(column, width)
    row = flatten(at[batch:-1], node.shape[batch:-1], space.extent)
    panel = L.plus(L.times(matrix, space.extent(panels)), L.quotient(column, PANEL))
    row = L.plus(L.times(panel, space.extent(depth)), row)
    return space.canonical(L.plus(L.times(row, PANEL), L.remainder(column, PANEL)))


def tile_address(
    space: Space, node: Node, at: Index, n: L.Expr, panel: L.Var, lane: L.Var
) -> L.Expr | None:
    """Where column `n` = 16 * panel + lane of a register tile goes in a tensor in panels.

    None unless a step along the lanes is one element, or one row of a panel (a transposed operand).
    """
    if node.attr("format") != PANELS:
        return None
    whole = L.plus(L.times(panel, PANEL), lane)
    cut = L.mapper(lambda e: whole if e is n else _cut(space, e, whole, panel, lane))
    address = panel_address(space, node, tuple(space.canonical(cut(e)) for e in at))
    form = space.affine(address)
    if any(lane in L.walk(atom) for atom, _ in form.terms if atom is not lane):
        return None
    step = form.coefficient(lane)
    return address if any(equal(step, s) is True for s in (1, PANEL)) else None


def _cut(space: Space, e: L.Expr, whole: L.Expr, panel: L.Var, lane: L.Var) -> L.Expr | None:
    """The quotient or remainder of `whole` = 16 * panel + lane by whole panels, None for anything else."""
    if not (isinstance(e, L.Op) and e.op in ("floordiv", "mod") and e.args[0] is whole):
        return None
    by = space.affine(e.args[1])
    panels = exact_div(by.constant, PANEL)
    if by.terms or panels is None or equal(panels, 0) is True:
        return None
    if e.op == "floordiv":
        return L.quotient(panel, space.extent(panels))
    return L.plus(L.times(L.remainder(panel, space.extent(panels)), PANEL), lane)


def own_outputs(graph: Graph) -> Graph:
    """Every output is a tensor that some kernel writes: inputs, constants and repeated outputs are copied."""
    taken: set[Node] = set()
    outputs: list[tuple[str, Node]] = []
    origins = dict(graph.origins)
    for name, node in graph.outputs:
        own = node
        while own in taken or own.name in ("input", "constant"):
            own = make(RESHAPE, own, shape=own.shape)
        origins.setdefault(own, graph.origins.get(node, ()))
        taken.add(own)
        outputs.append((name, own))
    return replace(graph.changed(tuple(outputs)), origins=origins)
