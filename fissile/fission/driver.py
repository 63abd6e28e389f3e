"""Fission: operator graph in, primitive graph out (DESIGN 3.2, Korch section 3).

Walks the live operators in order, splits each by its `@fission` function and remembers which
operator every primitive serves. Invariant: a Graph comes out whole or not at all; every operator
that cannot be split is named in one UnsupportedError, and what no proof settles becomes a guard.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from typing import TypeAlias

import numpy as np

from fissile.errors import ModelError, Place, UnsupportedError
from fissile.fission.build import constant_of
from fissile.fission.control import CONTROL, compared_extents
from fissile.fission.foreign import Foreigners, foreign_nodes
from fissile.fission.guards import guards_of
from fissile.fission.least import Least, Shortage, check_least
from fissile.fission.sequence import is_sequence, sequential
from fissile.fission.strange import of_constants
from fissile.fission.table import Call, Refusal, Result, Row, lookup
from fissile.fission.values import symbolic
from fissile.frontend.extents import dim_of, expressions_of
from fissile.frontend.function import function_body
from fissile.frontend.operator_graph import Extents, Operator, OperatorGraph, Value
from fissile.ir.dim import (
    Dim,
    DimLike,
    max_,
    min_,
    product,
    solve,
    symbol,
    symbols,
)
from fissile.ir.dtype import FLOAT32, DType, dtype
from fissile.ir.graph import (
    Graph,
    Guard,
    Node,
    bind_partial,
    evaluate,
    make,
    mentioned,
    plain_symbol,
)
from fissile.ir.primitive import CONSTANT, INPUT, cast, constant

_TINY = 64
_MOST_OPEN = 3  # dimensions that are tried to be 1 where an open Squeeze does not fit
_MOST_BYTES = 1 << 47
Results: TypeAlias = tuple[Node | None, ...]


@dataclass
class _Walk:
    """The state of one fission: values by name (None: an unsupported operator made it), and what was found."""

    values: dict[str, Node | None]
    problems: list[Place] = field(default_factory=list)
    guards: list[Guard] = field(default_factory=list)
    origins: dict[Node, tuple[str, ...]] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()  # inputs of a function that its caller leaves out
    foreign: Foreigners | None = None  # None: an operator without native definition is a problem
    apart: list[DimLike] = field(default_factory=list)  # extents taken not to be 1
    declared: Mapping[str, Extents] = field(default_factory=dict)  # what the model says of shapes

    strange: dict[str, np.ndarray] = field(default_factory=dict)  # constants of types nothing computes with
    equals: bool = False  # of two branches that fit, take the one for equal extents
    opened: list[str] = field(default_factory=list)  # Ifs of which two branches fit
    # least: of free extents, where all that is walked must run; leaves: initializers of an earlier walk
    least: Mapping[str, int] = field(default_factory=dict)
    leaves: Mapping[str, Node | None] = field(default_factory=dict)

    def marks(self) -> tuple[int, int, int, int]:
        """How much has been found: problems, guards, operators in Python, extents that these decide."""
        foreign = self.foreign or Foreigners()
        return len(self.problems), len(self.guards), len(foreign.places), len(foreign.late)

    def back_to(self, marks: tuple[int, int, int, int]) -> None:
        """Forget what was found since."""
        foreign = self.foreign or Foreigners()
        del self.problems[marks[0] :]
        del self.guards[marks[1] :]
        del foreign.places[marks[2] :]
        while len(foreign.late) > marks[3]:
            foreign.late.popitem()

    def inside(
        self,
        values: dict[str, Node | None],
        absent: Iterable[str] = (),
        declared: Mapping[str, Extents] | None = None,
    ) -> _Walk:
        """The walk of a body: other values, the same findings."""
        kept = self.problems, self.guards, self.origins
        hints = declared or {}
        own = _Walk(values, *kept, frozenset(absent), self.foreign, self.apart, hints)
        return replace(own, equals=self.equals, opened=self.opened, strange=self.strange)


def fission(operators: OperatorGraph, foreign: bool = False) -> Graph:
    """The primitive graph of a model.

    foreign: operators without native definition become foreign nodes, where their types allow it.

    Extents of inputs: a number stays; equal texts are one symbol, at least 0; an expression such as
    "4*h" is one where operators need what it says, else a symbol of that name; an unnamed extent k of
    input x is a symbol `x:k` of its own. UnsupportedError names all operators without a native
    definition, ModelError the one whose types are impossible.
    """
    return _graph(_walked(operators, foreign), operators)


def _graph(walk: _Walk, operators: OperatorGraph) -> Graph:
    inputs = tuple(node for v in operators.inputs if (node := walk.values[v.name]) is not None)
    if walk.problems:
        raise _unsupported(walk.problems)
    outputs = tuple((o.name, _output(walk, o.name)) for o in operators.outputs)
    late = {} if walk.foreign is None else walk.foreign.late
    graph = Graph(inputs, outputs, walk.origins, late=late)
    return replace(graph, guards=guards_of(graph, walk.guards))


def placed(operators: OperatorGraph) -> tuple[tuple[Place, ...], tuple[Place, ...]]:
    """(operators that run in Python, operators that do not run at all), each with the reason."""
    try:
        walk = _walked(operators, foreign=True)
        if not walk.problems:
            _graph(walk, operators)  # whose outputs have values that can leave it
    except UnsupportedError as error:
        return (), error.where
    return tuple(walk.foreign.places if walk.foreign else ()), tuple(walk.problems)


def unsupported(operators: OperatorGraph) -> tuple[Place, ...]:
    """The operators that have no native definition, each with its reason; empty when there is none."""
    try:
        return tuple(_walked(operators, foreign=False).problems)
    except UnsupportedError as error:
        return error.where


def _walked(operators: OperatorGraph, foreign: bool) -> _Walk:
    """The walk of the model, with the expressions among the extents of its inputs that operators need.

    An expression is a hint of the exporter. Where without it as few guards and operators in Python are left, a call may
    have any extent.
    """
    written = expressions_of(operators)
    unsolved = frozenset(text for text in written if solve(dim_of(text)) is None)
    walk = _walked_freely(operators, foreign, unsolved)
    others = [text for text in written if text not in unsolved]
    if not others or walk.problems:
        return walk
    least, free = _demands(walk, operators), unsolved
    for more in dict.fromkeys((frozenset(others), *(frozenset((text,)) for text in others))):
        if more <= free:
            continue
        with suppress(ModelError, UnsupportedError):
            other = _walked_freely(operators, foreign, free | more)
            if not other.problems and _demands(other, operators) <= least:
                walk, free = other, free | more
    return walk


def _demands(walk: _Walk, operators: OperatorGraph) -> int:
    """How many guards and operators in Python a walk leaves."""
    return len(_graph(walk, operators).guards) + len(walk.foreign.places if walk.foreign else ())


def _walked_freely(operators: OperatorGraph, foreign: bool, free: frozenset[str]) -> _Walk:
    """The walk of the model; where later operators do not fit what an open Squeeze keeps, of one with extents of 1.

    free: expressions that are taken as names.
    """
    apart: list[DimLike] = []
    opened: list[str] = []
    try:
        first = _walk_with(operators, foreign, free, {}, apart, opened)
        if not opened or _has_declared_ranks(first, operators):
            return first
        return _with_other_branches(operators, foreign, free) or first
    except ModelError:
        if opened and (other := _with_other_branches(operators, foreign, free)):
            return other
        names = [n for d in dict.fromkeys(apart) if isinstance(d, Dim) and (n := plain_symbol(d))]
        for units in _subsets(names[:_MOST_OPEN]):
            with suppress(ModelError):
                return _walk_with(operators, foreign, free, dict.fromkeys(units, 1), [], [])
        raise


def _with_other_branches(
    operators: OperatorGraph, foreign: bool, free: frozenset[str]
) -> _Walk | None:
    """The walk that takes the branches for equal extents, if it gives what the model declares."""
    with suppress(ModelError):
        walk = _walk_with(operators, foreign, free, {}, [], [], equals=True)
        if _has_declared_ranks(walk, operators):
            return walk
    return None


def _has_declared_ranks(walk: _Walk, operators: OperatorGraph) -> bool:
    """Whether the outputs are of the ranks that the model declares."""
    pairs = ((o.shape, walk.values.get(o.name)) for o in operators.outputs)
    return all(s is None or n is None or len(s) == n.type.rank for s, n in pairs)


def _subsets(names: Sequence[str]) -> Iterable[tuple[str, ...]]:
    """All of the names, then fewer and fewer, but not none."""
    return chain.from_iterable(combinations(names, n) for n in range(len(names), 0, -1))


def _walk_with(
    operators: OperatorGraph,
    foreign: bool,
    free: frozenset[str],
    fixed: Mapping[str, DimLike],
    apart: list[DimLike],
    opened: list[str],
    equals: bool = False,
) -> _Walk:
    """A walk; begun anew whenever an operator says that a free extent is larger than it was taken to be."""
    least: dict[str, Least] = {}
    leaves: dict[str, Node | None] = {}
    while True:
        apart.clear()
        opened.clear()
        known = dict(fixed) | {name: found.extent() for name, found in least.items()}
        inputs = tuple(_input(value, free, known) for value in operators.inputs)
        walk = _Walk({v.name: node for v, node in zip(operators.inputs, inputs, strict=True)})
        walk = replace(walk, apart=apart, declared=operators.shapes, equals=equals, opened=opened)
        walk.leaves = leaves
        walk.guards.extend(found.guard() for found in least.values())
        names = {s for node in inputs for s in mentioned(node)}
        walk.least = {name: least[name].number if name in least else 0 for name in names}
        if foreign:
            ranks = {o.name: len(o.shape) for o in operators.outputs if o.shape is not None}
            walk.foreign = Foreigners(symbols=names, ranks=ranks)
        try:
            _run(walk, operators, [o.name for o in operators.outputs])
        except Shortage as found:
            least[found.least.name] = found.least
            leaves = {name: walk.values[name] for name in operators.initializers}
            continue
        for name in (o.name for o in operators.outputs):
            if name in walk.strange or is_sequence(walk.values.get(name)):
                walk.problems.append(Place(name, "output", "it is no tensor of a known type"))
        _check_sizes(walk.origins, inputs)
        return walk


def _check_sizes(origins: Mapping[Node, Sequence[str]], inputs: Iterable[Node]) -> None:
    """ModelError F019 for tensors that no process could hold: offsets in them would be no 64-bit numbers.

    Free extents count as 1, and so does 0, since kernels count the others all the same.
    """
    places: dict[str, Place] = {}
    for node in (*inputs, *origins):
        size = node.dtype.bytes * math.prod(max(d, 1) for d in node.shape if isinstance(d, int))
        if size > _MOST_BYTES:
            name = ", ".join(origins.get(node, (str(dict(node.attrs).get("name", "")),)))
            places.setdefault(name, Place(name, detail=f"{node.type}: {size} bytes"))
    if places:
        raise ModelError(
            "F019",
            "tensors are larger than the memory that a process can address",
            where=[*places.values()],
            remedy="an extent, a scale or a pad that the model states is probably not what was meant",
        )


def _unsupported(problems: Iterable[Place]) -> UnsupportedError:
    places = tuple(problems)
    count = "1 operator has" if len(places) == 1 else f"{len(places)} operators have"
    return UnsupportedError("F021", f"{count} no native definition", where=places)


# ---- inputs --------------------------------------------------------------------------------------


def _input(value: Value, free: frozenset[str], fixed: Mapping[str, DimLike]) -> Node:
    try:
        of = dtype(value.dtype)
    except KeyError:
        raise UnsupportedError(
            "F022", f"input {value.name!r} is of type {value.dtype or 'unknown'}", where=value.name
        ) from None
    if value.shape is None:
        raise UnsupportedError(
            "F023",
            f"the rank of input {value.name!r} is not declared",
            where=value.name,
            remedy="declare its shape; extents may be named or left open",
        )
    declared = (
        symbol(d.replace("`", "'")) if isinstance(d, str) and d in free else _extent(value, k, d)
        for k, d in enumerate(value.shape)
    )
    shape = tuple(bind_partial(extent, fixed) for extent in declared)
    return make(INPUT, name=value.name, dtype=of.name, shape=shape)


def _extent(value: Value, axis: int, declared: int | str | None) -> DimLike:
    if isinstance(declared, int):
        return declared
    return symbol(f"{value.name}:{axis}".replace("`", "'")) if declared is None else dim_of(declared)


# ---- the walk ------------------------------------------------------------------------------------


def _run(walk: _Walk, graph: OperatorGraph, outputs: Iterable[str]) -> None:
    for name, array in graph.initializers.items():
        walk.values[name] = walk.leaves.get(name) or _leaf(walk, name, array)
    wanted = _live(graph, outputs)
    for operator in graph.operators:
        if any(name in wanted for name in operator.outputs):
            _step(walk, operator, wanted)


def _leaf(walk: _Walk, name: str, array: np.ndarray) -> Node | None:
    try:
        return constant_of(array)
    except Refusal:
        walk.strange[name] = array
        return None


def _live(graph: OperatorGraph, outputs: Iterable[str]) -> set[str]:
    """The names that the outputs need, those read inside subgraphs included."""
    wanted = set(outputs)
    for operator in reversed(graph.operators):
        if wanted.intersection(operator.outputs):
            wanted.update(_reads(operator))
    return wanted


def _reads(operator: Operator) -> set[str]:
    names = {name for name in operator.inputs if name}
    for value in operator.attributes.values():
        bodies = value if isinstance(value, tuple) else (value,)
        for body in bodies:
            if isinstance(body, OperatorGraph):
                names.update(*(_reads(inner) for inner in body.operators))
                names.update(o.name for o in body.outputs)
    return names


def _step(walk: _Walk, operator: Operator, wanted: Container[str]) -> None:
    missing = [n for n in operator.inputs if n and n not in walk.values]
    if missing:
        raise ModelError(
            "F014", f"{missing[0]!r} has no value", where=Place(operator.where, operator.title)
        )
    inputs = tuple(walk.values[n] if n else None for n in operator.inputs)
    present = [n for n in operator.inputs if n and n not in walk.absent]
    poisoned = any(walk.values[n] is None for n in present)
    results: Results = ()
    strange = {n: walk.strange[n] for n in present if n in walk.strange}
    if strange or not poisoned:
        try:
            results = (
                of_constants(operator, dict(zip(operator.inputs, inputs)), strange)
                if strange
                else _native_or_foreign(walk, operator, inputs, wanted)
            )
        except Refusal as refusal:
            walk.problems.append(Place(operator.where, operator.title, str(refusal)))
        except ModelError:  # from within a body, where the place is named better
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise _impossible(operator, inputs, error) from error
    for node in results:
        if node is not None and any(not isinstance(d, Dim) and d < 0 for d in node.shape):
            raise _impossible(operator, inputs, ValueError(f"the result would be {node.type}"))
    for k, name in enumerate(operator.outputs):
        if name:
            walk.values[name] = results[k] if k < len(results) else None
    _remember(walk.origins, results, operator.where)


def _native_or_foreign(
    walk: _Walk, operator: Operator, inputs: Results, wanted: Container[str]
) -> Results:
    """The operator split; where that is refused, as a foreign node. Refusal when it can be neither."""
    if walk.foreign is None:
        return _split(walk, operator, inputs)
    marks, known = walk.marks(), len(walk.foreign.places)
    try:
        results = _split(walk, operator, inputs)
        if len(walk.problems) > marks[0]:
            raise Refusal(walk.problems[marks[0]].detail)
        if operator.type == "If" and len(walk.foreign.places) > known and _is_open(inputs[0]):
            raise Refusal("a branch of this If runs in Python, and its condition depends on the data")
        return results
    except Refusal as refusal:
        walk.back_to(marks)
        return foreign_nodes(walk.foreign, operator, walk.values, str(refusal), wanted)


def _is_open(condition: Node | None) -> bool:
    return condition is not None and condition.primitive is not CONSTANT


def _impossible(operator: Operator, inputs: Results, error: Exception) -> ModelError:
    types = ", ".join("nothing" if i is None else str(i.type) for i in inputs)
    place = Place(operator.where, operator.title, f"of {types}")
    return ModelError("F014", "an operator's inputs do not fit", where=place, reason=str(error))


def _split(walk: _Walk, operator: Operator, inputs: Results) -> Results:
    first = next((name for name in operator.outputs if name), "")
    call = Call(operator, walk.declared.get(first))
    control = None if operator.domain else CONTROL.get(operator.type)
    if control is not None:
        chosen = _by_extents(walk, call, inputs) if operator.type == "If" else None
        if chosen is not None:
            return chosen
        results = control(lambda body, given: _body_of(walk, body, given), call, inputs)
        walk.guards.extend(call.guards)
        return results
    listed = sequential(lambda body, given: _body_of(walk, body, given), call, inputs)
    if listed is not None:
        walk.guards.extend(call.guards)
        return listed
    found = symbolic(call, inputs)
    if found is not None:
        return (found,)
    row = lookup(operator)
    if row is None:
        return _by_definition(walk, operator, inputs)
    try:
        results = _called(row, call, inputs)
    finally:
        walk.apart.extend(call.apart)
    check_least(call.least, walk.least)
    walk.guards.extend(call.guards)
    results = tuple(_folded(node, inputs) for node in results)
    absent = [n for n in operator.outputs[len(results) :] if n]
    if absent:
        raise Refusal(f"its output {absent[0]!r} has no native definition")
    return results


def _by_extents(walk: _Walk, call: Call, inputs: Results) -> Results | None:
    """The If of two branches that differ in rank, whose condition compares extents: the branch of the declared rank.

    Where nothing is declared it is the branch for unequal extents, or, where that does not fit what comes behind, the
    other one. A call of other extents is refused. None where ranks agree, or the condition is another one.
    """
    compared = compared_extents(inputs[0])
    if compared is None or _is_constant(inputs[0]):
        return None
    left, right, equal_is_true = compared
    bodies = [call.attr("then_branch"), call.attr("else_branch")]
    bodies = bodies if equal_is_true else bodies[::-1]  # for equal extents, then for others
    found = [_tried(walk, body) for body in bodies]
    ranks = [None if f is None else [None if n is None else n.type.rank for n in f] for f in found]
    if ranks[0] == ranks[1]:
        return None
    rank = None if call.declared is None else len(call.declared)
    fits = [have is not None and rank in (None, have[0]) for have in ranks]
    if not any(fits):
        fits = [f is not None for f in found]
    if all(fits):
        walk.opened.append(call.operator.where)
    takes_equal = fits[0] and (walk.equals or not fits[1])
    names = sorted({x.name for d in (left, right) if isinstance(d, Dim) for x in symbols(d)})
    what = f"the branches differ in rank, and the one compiled is that for {left}"
    if takes_equal:
        fix = ",".join(f"{name}=NUMBER" for name in names)
        call.demand(left, right, f"{what} = {right}: for others compile with --shape {fix}")
    else:
        apart = min_(max_(left - right, right - left), 1)
        fix = f"{left}={right}" if names == [str(left)] else ",".join(f"{n}=NUMBER" for n in names)
        call.demand(apart, 1, f"{what} other than {right}: for that compile with --shape {fix}")
    walk.guards.extend(call.guards)
    return _body_of(walk, bodies[0 if takes_equal else 1], ())


def _tried(walk: _Walk, body: OperatorGraph) -> Results | None:
    """The outputs of a body, without a trace in the walk; None where it cannot be split."""
    marks = walk.marks()
    try:
        found = _body_of(walk, body, ())
        return None if len(walk.problems) > marks[0] else found
    except (ModelError, Refusal):
        return None
    finally:
        walk.back_to(marks)


def _is_constant(node: Node | None) -> bool:
    return node is not None and node.primitive is CONSTANT


def _body_of(walk: _Walk, body: OperatorGraph, inputs: Results) -> Results:
    """The outputs of a body; what its inputs do not name it takes from the graph around it."""
    values = dict(walk.values)
    values.update((v.name, node) for v, node in zip(body.inputs, inputs, strict=True))
    inner = walk.inside(values, declared=body.shapes)
    _run(inner, body, [o.name for o in body.outputs])
    return tuple(inner.values.get(o.name) for o in body.outputs)


def _by_definition(walk: _Walk, operator: Operator, inputs: Results) -> Results:
    """The operator split as ONNX defines it by other operators."""
    kinds = [None if i is None else (i.dtype.name, tuple(map(_plain, i.shape))) for i in inputs]
    body = function_body(operator, kinds)
    if body is None:
        raise Refusal("no native definition")
    values: dict[str, Node | None] = {v.name: None for v in body.inputs}
    values.update((v.name, node) for v, node in zip(body.inputs, inputs, strict=False))
    absent = frozenset(name for name, node in values.items() if node is None)
    problems: list[Place] = []  # of operators that are not in the model: told as one of this operator
    inner = _Walk(values, problems, walk.guards, {}, absent)
    wanted = [o.name for o in body.outputs[: len(operator.outputs)]]
    _run(inner, body, wanted)
    if problems:
        needs = ", ".join(dict.fromkeys(p.operator for p in problems))
        raise Refusal(f"no native definition of {needs}, of which it is made")
    return tuple(inner.values.get(name) for name in wanted)


def _plain(extent: DimLike) -> int | str:
    return str(extent) if isinstance(extent, Dim) else int(extent)


def _folded(node: Node | None, inputs: Results) -> Node | None:
    """The value of a tiny result of tiny constants, so that scales, sizes and conditions are known.

    Whatever is larger is folded with its neighbours by the rewriting of primitives.
    """
    tiny = all(i is None or (i.primitive is CONSTANT and _is_tiny(i)) for i in inputs)
    if node is None or not inputs or not tiny or not _is_tiny(node) or node.primitive is CONSTANT:
        return node
    return constant(evaluate(Graph((), (("", node),)), {}, {})[""], node.dtype)


def _is_tiny(node: Node) -> bool:
    total = product(node.shape)
    return not isinstance(total, Dim) and total <= _TINY


def _called(row: Row, call: Call, inputs: Results) -> Results:
    """The function's results; half types go in as float32 and come out rounded once, to the type of input `like`."""
    if row.raw or not any(i is not None and i.dtype.is_half for i in inputs):
        return _tuple(row.function(call, *inputs))
    floats = [i.dtype for i in inputs[row.like :] if i is not None and i.dtype.is_float]
    wide = [cast(i, FLOAT32) if i is not None and i.dtype.is_half else i for i in inputs]
    results = _tuple(row.function(call, *wide))
    if not floats or not floats[0].is_half:
        return results
    return tuple(_narrow(node, floats[0], k in row.wide) for k, node in enumerate(results))


def _tuple(result: Result) -> Results:
    return (result,) if isinstance(result, Node) else result


def _narrow(node: Node | None, half: DType, is_wide: bool) -> Node | None:
    return node if node is None or is_wide or node.dtype is not FLOAT32 else cast(node, half)


def _remember(
    origins: dict[Node, tuple[str, ...]], results: Iterable[Node | None], name: str
) -> None:
    """Note `name` at every node that is new below the results, and at the results themselves."""
    stack = [node for node in results if node is not None]
    tops = set(stack)
    while stack:
        node = stack.pop()
        known = origins.get(node)
        if known is None:
            origins[node] = (name,)
            stack.extend(node.inputs)
        elif node in tops and name not in known and node.inputs:
            origins[node] = (*known, name)


def _output(walk: _Walk, name: str) -> Node:
    node = walk.values.get(name)
    if node is None:
        raise ModelError("F014", f"the model's output {name!r} has no value", where=name)
    return node
