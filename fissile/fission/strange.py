"""Constants of element types that nothing here computes with (float8, int4): read where a model makes numbers of them.

In: an operator all of whose inputs are constants. Out: its results, computed while compiling. Invariant: no such type
reaches the primitive graph.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fissile.fission.build import constant_of
from fissile.fission.table import Refusal
from fissile.frontend import Operator, single_model
from fissile.ir.dtype import BFLOAT16
from fissile.ir.graph import Node
from fissile.ir.primitive import constant_value
from fissile.reference import evaluate


def of_constants(
    operator: Operator, nodes: Mapping[str, Node | None], strange: Mapping[str, np.ndarray]
) -> tuple[Node, ...]:
    """The results as constants. nodes: of all inputs by name; strange: the arrays of those that have none.

    Refusal where it reads more than constants, Python cannot run it, or the results are as strange.
    """
    arrays = dict(strange)
    kind = next(iter(strange.values())).dtype.name
    for name, node in nodes.items():
        array = None if node is None else constant_value(node)
        if name and name not in strange:
            if (
                node is None
                or array is None
                or array.dtype != node.dtype.numpy
                or node.dtype is BFLOAT16
            ):
                raise Refusal(f"tensors of {kind} have no native definition")
            arrays[name] = array
    model = single_model(operator, dict.fromkeys(arrays, ("", ())), arrays)
    try:
        found = evaluate(model.SerializeToString(), [])
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise Refusal(f"tensors of {kind} cannot be computed with: {error}") from error
    return tuple(constant_of(np.asarray(array)) for array in found)
