"""Binding a shape: from the extents of the inputs to slots that native code can run on.

In: input shapes, or values of the free dimensions. Out: a `Binding` with output shapes and arena
size. The symbolic algebra was compiled into `fissile_bind`; here symbols are only read off the
shapes and the extents that come out are compared with the extents that came in (DESIGN 3.2).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fissile.errors import InvalidFeed, OptionError, Place, did_you_mean
from fissile.runtime.feeds import shape_text
from fissile.runtime.memory import Words, address_of, aligned_words
from fissile.runtime.plan import ARENA, WEIGHTS, Guard, Plan, Symbol, Tensor, contradiction
from fissile.runtime.program import Program

Shape = tuple[int, ...]
ADDRESSES = 1 << 47  # bytes that a process can have
_SMALL = "an extent of the feeds is too small for what the model cuts off"
_MOST = 1 << 62  # of an extent


@dataclass(frozen=True, eq=False)
class Binding:
    """Slots of one shape. arena: bytes; scratch: bytes per thread; is_tiny: no launch has a second task to share.

    Where extents depend on data, what depends on those is known during a run only (`bind_late`); `symbols` has 1 there.
    """

    slots: Words
    symbols: Words
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    arena: int
    scratch: int
    is_tiny: bool


def bind_shapes(program: Program, shapes: tuple[Shape, ...]) -> Binding:
    """Bind what the inputs' shapes say; InvalidFeed F205 or F206 if they contradict the model."""
    plan = program.plan
    values = [_solve(symbol, plan.inputs, shapes) for symbol in plan.symbols]
    binding = bind_values(program, values)
    if binding.inputs != shapes:
        raise _disagreement(program, binding.inputs, shapes)
    return binding


def bind_extents(program: Program, extents: Mapping[str, int] | None) -> Binding:
    """Bind by dimension name; a dimension not named is 1. OptionError for an unknown name."""
    names = [symbol.name for symbol in program.plan.symbols]
    names += [symbol.name for symbol in program.plan.late]
    if not isinstance(extents, Mapping | None):
        raise OptionError("F608", f"shapes={extents!r}", remedy='shapes={"batch": 8}')
    given = dict(extents or {})
    unknown = [name for name in given if name not in names]
    if unknown:
        raise OptionError(
            "F603",
            f"no dimension is called {', '.join(map(str, unknown))}",
            reason=f"free dimensions: {', '.join(names) or 'none'}",
            remedy=did_you_mean(str(unknown[0]), names),
        )
    for name, extent in given.items():
        if isinstance(extent, bool) or not isinstance(extent, int | np.integer) or not 0 <= extent < _MOST:
            raise OptionError("F608", f"{name}: {extent!r} is no extent", remedy=f"{name}: 8")
    return bind_values(program, [given.get(name, 1) for name in names])


def bind_values(program: Program, values: Sequence[int]) -> Binding:
    """Run the compiled shape arithmetic and check the guards (F206)."""
    plan = program.plan
    symbols = aligned_words(max(len(plan.symbols) + len(plan.late), 1))
    symbols[:] = 1
    symbols[: len(values)] = values
    slots = aligned_words(len(plan.template))
    slots[:] = plan.template
    program.image.bind(address_of(symbols), address_of(slots))
    check_guards(plan, slots, 0)
    _check_sizes(program, slots, 0)
    return Binding(
        slots,
        symbols,
        tuple(_extents(tensor, slots) for tensor in plan.inputs),
        tuple(_extents(tensor, slots) for tensor in plan.outputs),
        int(slots[plan.arena]),
        -(-int(slots[plan.scratch]) // 64) * 64,
        not plan.calls and all(slots[launch.tasks] <= 1 for launch in plan.launches),
    )


def bind_late(program: Program, symbols: Words, slots: Words, level: int) -> None:
    """Fill the slots anew, the first `level` calls having returned; F206 for what then contradicts the model.

    ArtifactError F104 where a number changes that was final before: launches have used it already.
    """
    final = program.plan.final[level - 1]
    before = slots[final]
    program.image.bind(address_of(symbols), address_of(slots))
    if np.any(slots[final] != before):  # np.array_equal takes what a signal handler raises for a difference
        raise contradiction("a call has changed a number that was known before it")
    check_guards(program.plan, slots, level)
    _check_sizes(program, slots, level)


def check_guards(plan: Plan, slots: Words, level: int) -> None:
    """F206 unless the guards of this level hold."""
    for guard in plan.guards:
        if guard.level == level:
            _check_guard(guard, int(slots[guard.left]), int(slots[guard.right]))


def _check_sizes(program: Program, slots: Words, level: int) -> None:
    """Sizes and addresses known after `level` calls make sense: F206, F211, or F104 where shapes are not to blame."""
    plan = program.plan
    for tensor in plan.outputs:
        if tensor.level != level:
            continue
        shape = _extents(tensor, slots)
        if any(extent < 0 for extent in shape):
            raise InvalidFeed(
                "F206", f"{tensor.info.name} would have the shape {list(shape)}", reason=_SMALL
            )
        if math.prod(shape) * tensor.info.dtype.itemsize > ADDRESSES:
            raise _too_large(f"{tensor.info.name} would have the shape {list(shape)}")
    arena, scratch = (int(slots[s]) for s in (plan.sums or ((plan.arena, plan.scratch),))[level])
    if not (0 <= arena <= ADDRESSES and 0 <= scratch <= ADDRESSES):
        raise _too_large("what is kept between kernels does not fit")
    bases, places = plan.offsets.T
    known = plan.levels[places] <= level
    most = np.where(bases == ARENA, arena, np.where(bases == WEIGHTS, program.weight_bytes, 0))
    offsets = slots[places]
    if plan.calls:
        most = np.where(bases == ARENA, arena - 1, most)  # where it ends, what later calls decide begins
    if np.any(known & ((offsets < 0) | (offsets > most))):
        raise contradiction("a tensor does not lie in its memory")


def _too_large(reason: str) -> InvalidFeed:
    return InvalidFeed("F211", "these shapes need more memory than a process can have", reason=reason)


def _extents(tensor: Tensor, slots: Words) -> Shape:
    return tuple(int(slots[slot]) for slot in tensor.slots)


def _solve(symbol: Symbol, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> int:
    """The value of a free dimension; F205 where the extent does not fit its expression."""
    extent = shapes[symbol.input][symbol.axis]
    value, rest = divmod(extent - symbol.offset, symbol.scale)
    if rest or value < 0:
        info = inputs[symbol.input].info
        raise InvalidFeed(
            "F205",
            f"axis {symbol.axis} of {info.name} is {extent}, which is no {_form(symbol)}",
            where=Place(info.name, detail=f"expected {shape_text(info.shape)}"),
        )
    return value


def _form(symbol: Symbol) -> str:
    scaled = symbol.name if symbol.scale == 1 else f"{symbol.scale}*{symbol.name}"
    if not symbol.offset:
        return scaled
    return f"{scaled} {'+' if symbol.offset > 0 else '-'} {abs(symbol.offset)}"


def _check_guard(guard: Guard, left: int, right: int) -> None:
    holds = {"eq": left == right, "le": left <= right, "ge": left >= right}[guard.relation]
    if not holds:
        sign = {"eq": "=", "le": "<=", "ge": ">="}[guard.relation]
        raise InvalidFeed(
            "F206",
            guard.message,
            reason=f"{left} {sign} {right} does not hold for these shapes",
        )


def _disagreement(
    program: Program, expected: Sequence[Shape], found: Sequence[Shape]
) -> InvalidFeed:
    """Every extent that is not what it must be, each with what fixed the expectation."""
    places: list[Place] = []
    for tensor, wanted, shape in zip(program.plan.inputs, expected, found):
        for axis, (want, have) in enumerate(zip(wanted, shape)):
            if want != have:
                source = _source(program, tensor.info.shape[axis], found)
                detail = f"axis {axis} is {have}, expected {want}{source}"
                places.append(Place(tensor.info.name, detail=detail))
    shapes = (f"{t.info.name} {shape_text(t.info.shape)}" for t in program.plan.inputs)
    return InvalidFeed(
        "F205",
        "the shapes of the feeds do not fit the model",
        where=places,
        reason=f"the model wants {', '.join(shapes)}",
    )


def _source(program: Program, label: int | str | None, found: Sequence[Shape]) -> str:
    for symbol in program.plan.symbols:
        if symbol.name == label:
            other = program.plan.inputs[symbol.input].info.name
            extent = found[symbol.input][symbol.axis]
            return f": {label} is {extent} in axis {symbol.axis} of {other}"
    return f" ({label})" if isinstance(label, str) else ""
