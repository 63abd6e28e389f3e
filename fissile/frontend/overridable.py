"""Initializers that stay inputs, because the user names them: everything else is packed into the compiled model.

In: an operator graph and names of initializers. Out: the graph in which these are inputs, to be fed with every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fissile.errors import OptionError, did_you_mean
from fissile.frontend.operator_graph import OperatorGraph, Value


def as_inputs(graph: OperatorGraph, names: Sequence[str]) -> OperatorGraph:
    """The graph with these initializers as inputs behind its own, of their types. OptionError F617 for another name."""
    for name in names:
        if name not in graph.initializers:
            raise OptionError(
                "F617",
                f"no initializer is called {name!r}",
                reason="only what the outputs depend on is kept",
                remedy=did_you_mean(name, graph.initializers),
            )
    kept = {n: array for n, array in graph.initializers.items() if n not in names}
    made = (Value(n, graph.initializers[n].dtype.name, graph.initializers[n].shape) for n in names)
    return replace(graph, initializers=kept, inputs=(*graph.inputs, *made))
