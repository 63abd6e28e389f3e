"""Extents that the user fixes, put into the inputs of an operator graph (PRODUCT 4.3).

In: the graph and wishes by the name of a dimension (8, or (1, 16)) or of an input ([8, 3, None]).
Out: the graph with numbers for what is fixed. Invariant: a range fixes nothing, it says where the
plan should be good; a wish that the model contradicts, or that names nothing, is an OptionError.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fissile.errors import OptionError, did_you_mean
from fissile.frontend.operator_graph import OperatorGraph, Value
from fissile.ir.dim import Dim, DimLike, Symbol, parse, symbol, symbols
from fissile.ir.dim_terms import single
from fissile.ir.graph import bind_partial

Wish = int | tuple[int, int] | None
Shapes = Mapping[str, Wish | Sequence[Wish]]
Extent = int | str | None


@dataclass
class _Fixed:
    """What is fixed: dimensions by name, and unnamed extents by input and axis."""

    names: dict[str, DimLike] = field(default_factory=dict)
    axes: dict[tuple[str, int], int] = field(default_factory=dict)


def fix_extents(graph: OperatorGraph, shapes: Shapes) -> OperatorGraph:
    """The graph with the extents that `shapes` fixes. OptionError F608 (no such name), F609 (contradiction)."""
    inputs = {value.name: value for value in graph.inputs}
    dimensions = {name for value in graph.inputs for name in _names(value)}
    fixed = _Fixed()
    for name, wish in shapes.items():
        if name in dimensions and not isinstance(wish, list):
            _fix(fixed, name, _checked(name, wish))
        elif name in inputs:
            _fix_input(fixed, inputs[name], wish)
        else:
            raise OptionError(
                "F608",
                f"the model has no dimension or input called {name!r}",
                reason=f"it has {', '.join(sorted(dimensions) + list(inputs))}",
                remedy=did_you_mean(name, [*dimensions, *inputs]),
            )
    if not fixed.names and not fixed.axes:
        return graph
    return replace(graph, inputs=tuple(_bound(value, fixed) for value in graph.inputs))


def dim_of(text: str) -> DimLike:
    """A declared extent: an expression such as "4*h" where it can be read as one, else a symbol of that name."""
    text = text.replace("`", "'")
    if any(sign in text for sign in "+*/%()"):
        try:
            return parse(text)
        except (ValueError, ZeroDivisionError, OverflowError, RecursionError):
            return symbol(text)  # what is no expression, or none that anybody meant
    return symbol(text)


def expressions_of(graph: OperatorGraph) -> tuple[str, ...]:
    """The declared extents of inputs that are expressions, each once."""
    texts = (d for value in graph.inputs for d in value.shape or () if isinstance(d, str))
    return tuple(dict.fromkeys(t for t in texts if not _is_name(dim_of(t))))


def _is_name(extent: DimLike) -> bool:
    return isinstance(extent, Dim) and isinstance(single(extent), Symbol)


def _names(value: Value) -> Iterator[str]:
    for extent in value.shape or ():
        if isinstance(extent, str):
            yield from (s.name for s in symbols(dim_of(extent)))


def _checked(name: str, wish: object) -> Wish:
    """The wish, if it is an extent, a range of extents, or None."""

    def is_extent(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0

    if wish is None or is_extent(wish):
        return wish  # type: ignore[return-value]
    is_pair = isinstance(wish, Sequence) and len(wish) == 2 and all(map(is_extent, wish))
    if is_pair and wish[0] <= wish[1]:  # type: ignore[index]
        return wish[0], wish[1]  # type: ignore[index]
    raise OptionError("F608", f"{name}: {wish!r} is no extent", remedy=f"{name}=8 or {name}=1..16")


def _fix(fixed: _Fixed, name: str, wish: Wish) -> None:
    if not isinstance(wish, int):
        return
    if fixed.names.setdefault(name, wish) != wish:
        raise OptionError("F609", f"{name} is fixed as {fixed.names[name]} and as {wish}")


def _fix_input(fixed: _Fixed, value: Value, wish: object) -> None:
    shape = value.shape or ()
    if not isinstance(wish, Sequence) or len(wish) != len(shape):
        raise OptionError(
            "F609",
            f"{wish!r} is no shape for input {value.name}",
            reason=f"it is {list(shape)}, {len(shape)} axes",
            remedy=f"{value.name}:{','.join('?' for _ in shape) or '(a scalar)'}",
        )
    for axis, (extent, one) in enumerate(zip(shape, wish, strict=True)):
        place = f"{value.name}, axis {axis}"
        chosen = _checked(place, one)
        if isinstance(extent, int):
            if isinstance(chosen, tuple) or chosen not in (None, extent):
                raise OptionError("F609", f"the model itself fixes {place} as {extent}")
        elif extent is None and isinstance(chosen, int):
            fixed.axes[value.name, axis] = chosen
        elif isinstance(extent, str) and extent in _names(value):
            _fix(fixed, extent, chosen)
        elif chosen is not None:
            raise OptionError("F609", f"{place} is {extent}", remedy="fix its dimensions by name")


def _bound(value: Value, fixed: _Fixed) -> Value:
    if value.shape is None:
        return value
    shape = (_extent(value.name, axis, e, fixed) for axis, e in enumerate(value.shape))
    return replace(value, shape=tuple(shape))


def _extent(name: str, axis: int, extent: Extent, fixed: _Fixed) -> Extent:
    if extent is None:
        return fixed.axes.get((name, axis))
    if isinstance(extent, int):
        return extent
    dim = dim_of(extent)
    if not any(s.name in fixed.names for s in symbols(dim)):
        return extent
    found = bind_partial(dim, fixed.names)
    return found if isinstance(found, int) else str(found)
