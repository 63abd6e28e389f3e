"""Loop and Scan in Python: bodies are run turn by turn.

In: what a loop carries and scans, its body as an evaluator. Out: the values after the last turn, and the stacks of what
every turn gave.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from fissile.reference.base import Array, Corrected


class Loop(Corrected):
    """A loop may take no turn, its condition may be absent, and results of the turns are stacked, of any rank."""

    def need_context(self) -> bool:
        """The body reads values from around it."""
        return True

    def _run(
        self,
        turns: Array | None,
        condition: Array | None,
        *carried: Any,
        context: dict[str, Any] | None = None,
        **attributes: Any,
    ) -> tuple[Any, ...]:
        body = self.body
        goes_on = True if condition is None else bool(np.asarray(condition).all())
        most = None if turns is None else int(np.asarray(turns).reshape(-1)[0])
        values = list(carried)
        stacks: list[list[Any]] = [[] for _ in body.output_names[1 + len(values) :]]
        turn = 0
        while goes_on and (most is None or turn < most):
            known = [np.array(turn, np.int64), np.array(goes_on), *values]
            feeds = {**(context or {}), **dict(zip(body.input_names, known, strict=True))}
            found = body.run(None, feeds)
            goes_on = bool(np.asarray(found[0]).all())
            values = list(found[1 : 1 + len(values)])
            for stack, piece in zip(stacks, found[1 + len(values) :], strict=True):
                stack.append(piece)
            turn += 1
        types = body.output_types[1 + len(values) :]
        scanned = (np.stack(s) if s else _nothing(t) for s, t in zip(stacks, types, strict=True))
        return (*values, *scanned)


def _nothing(kind: onnx.TypeProto) -> Array:
    """The stacked results of no turn, as far as the body declares their type."""
    tensor = kind.tensor_type
    known = tensor.elem_type != onnx.TensorProto.UNDEFINED
    of = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type) if known else np.float32
    return np.zeros((0, *(int(d.dim_value) for d in tensor.shape.dim)), of)


class Scan(Corrected):
    """Before opset 9: over sequences of a batch, axis 0 the batch and axis 1 the turns, each of its own length."""

    def need_context(self) -> bool:
        """The body reads values from around it."""
        return True

    def _run(
        self, lengths: Array | None, *given: Any, context: Any = None, **attributes: Any
    ) -> tuple[Any, ...]:
        count = int(self.given("num_scan_inputs", 1))
        states, scans = given[:-count], given[-count:]
        backward = list(self.given("directions", [0] * count))
        whole = scans[0].shape[1]
        rows = []
        for b in range(scans[0].shape[0]):
            turns = whole if lengths is None else int(lengths[b])
            pieces = [
                x[b, :turns][::-1] if back else x[b, :turns] for x, back in zip(scans, backward)
            ]
            rows.append(self._sequence([s[b] for s in states], pieces, turns, whole, context))
        return tuple(np.stack(column) for column in zip(*rows, strict=True))

    def _sequence(
        self, values: list[Any], scans: list[Array], turns: int, whole: int, context: Any
    ) -> list[Any]:
        stacks: list[list[Any]] = [[] for _ in self.body.output_names[len(values) :]]
        for turn in range(turns):
            known = [*values, *(x[turn] for x in scans)]
            feeds = {**(context or {}), **dict(zip(self.body.input_names, known, strict=True))}
            found = self.body.run(None, feeds)
            values = list(found[: len(values)])
            for stack, piece in zip(stacks, found[len(values) :], strict=True):
                stack.append(piece)
        stacked = (np.stack(s) for s in stacks)
        filled = [np.pad(s, [(0, whole - turns), *[(0, 0)] * (s.ndim - 1)]) for s in stacked]
        return [*values, *filled]
