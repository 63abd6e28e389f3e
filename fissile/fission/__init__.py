"""Operator graphs in, primitive graphs out: one function per ONNX operator (DESIGN 3.2)."""

from fissile.fission import (
    contrib,
    elementwise,
    grid,
    indexing,
    layout,
    learned,
    linear,
    normalization,
    pooling,
    reduction,
    resize,
    shape,
)
from fissile.fission.driver import fission, placed, unsupported
from fissile.fission.table import TABLE

FAMILIES = (
    elementwise, reduction, normalization, layout, linear, pooling, indexing, resize, shape, learned,
    contrib, grid,
)  # fmt: skip

__all__ = ["FAMILIES", "TABLE", "fission", "placed", "unsupported"]
