"""What the emission of one function knows: values, lanes, masks, buffers, and helpers it needs.

In: nothing but the target. Out: the vocabulary of `expr`, `memory` and `llvm`.
Invariant: an int64 is `text + plus + step * lane`, so constants and the lane stay out of the text
until something that is not linear needs them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from fissile.codegen.text import Code, float_text, type_text
from fissile.ir.dtype import BOOL, INT64, DType
from fissile.ir.loop import Buffer, Expr, Load, Space, Var, walk
from fissile.target import Target


@dataclass(frozen=True, slots=True)
class Value:
    """A scalar (`lanes` 1) or a vector. `plus` and `step` only on int64; no `text`: just `plus`."""

    text: str
    dtype: DType
    lanes: int = 1
    plus: int = 0
    step: Value | None = None

    @property
    def number(self) -> int | None:
        """The value when it is an int64 known while emitting."""
        if self.text == "" and self.step is None:
            return self.plus
        return None


@dataclass(frozen=True, slots=True)
class Mask:
    """Which lanes run: an `<n x i1>`; `count` when it is the first `count` lanes, a constant.

    is_tail: it only cuts off a loop's last iterations (lane 0 always runs).
    """

    text: str
    lanes: int
    count: int | None = None
    is_tail: bool = True


@dataclass(frozen=True, slots=True)
class Place:
    """Where a buffer lives: pointer, strides in elements, and what is known about it.

    is_frozen: nothing in the function writes it. tiles: lanes kept for each element (a buffer
    that exists once per lane). extent, capacity: last extent and elements of a REGISTER buffer.
    """

    pointer: str
    strides: tuple[Value, ...]
    space: Space
    is_frozen: bool = False
    tiles: int = 1
    extent: int = 0


@dataclass(frozen=True, slots=True)
class LaneFacts:
    """What a VECTORIZED loop's body says about running its iterations as lanes.

    lanes: of a whole vector. needs_offsets: it picks elements of a REGISTER buffer with its index,
    so every vector must be written out. has_masks: every access it makes can be masked.
    """

    is_vectorizable: bool
    lanes: int
    needs_offsets: bool
    has_masks: bool


@dataclass(frozen=True, slots=True)
class Routine:
    """An operator that is a function of its own in the module."""

    operator: str
    dtype: DType
    lanes: int

    @property
    def name(self) -> str:
        """What it is called in the text."""
        return f"{self.operator}.v{self.lanes}{self.dtype.name}"


@dataclass
class Helpers:
    """Declarations by name and routines that the functions of one module share."""

    declarations: dict[str, str] = field(default_factory=dict)
    routines: dict[Routine, None] = field(default_factory=dict)

    def declare(self, name: str, result: str, parameters: str) -> None:
        """Make `name` callable."""
        self.declarations.setdefault(name, f"declare {result} @{name}({parameters})")


@dataclass
class Emitter:
    """The state of one function's emission.

    runs: by buffer, text and step of an offset, the first `plus` and how many neighbours from there on every lane may
    read: an unrolled loop reads all of them.
    """

    target: Target
    helpers: Helpers
    code: Code = field(default_factory=Code)
    values: dict[Expr, Value] = field(default_factory=dict)  # variables
    memo: dict[Expr, Value] = field(default_factory=dict)  # this statement's expressions
    places: dict[Buffer, Place] = field(default_factory=dict)
    lanes: int = 1
    mask: Mask | None = None
    scratch: Value = field(default_factory=lambda: integer(0))
    loads: dict[Expr, bool] = field(default_factory=dict)
    sizes: dict[Expr, int] = field(default_factory=dict)
    lane_facts: dict[int, LaneFacts] = field(default_factory=dict)  # by the loop's id
    has_scatter: bool = False
    runs: dict[tuple[Buffer, str, Value | None], tuple[tuple[int, int], ...]] = field(
        default_factory=dict
    )

    def has_load(self, e: Expr) -> bool:
        """Whether `e` reads memory."""
        if (known := self.loads.get(e)) is None:
            known = any(isinstance(x, Load) for x in walk(e))
            self.loads[e] = known
        return known

    @contextmanager
    def masked(self, mask: Mask | None) -> Iterator[None]:
        """Emission in which only the lanes of `mask` run; what it loads is forgotten after."""
        outer, memo = self.mask, self.memo
        self.mask, self.memo = mask, dict(memo)
        yield
        self.mask, self.memo = outer, memo

    @contextmanager
    def level(self, is_loop: bool) -> Iterator[None]:
        """Emission inside a loop's body or a branch."""
        memo = self.memo
        self.memo = {} if is_loop else dict(memo)
        self.code.enter(is_loop)
        yield
        self.code.leave()
        self.memo = memo

    @contextmanager
    def bound(self, variable: Var, value: Value) -> Iterator[None]:
        """Emission in which `variable` stands for `value`."""
        before = self.values.get(variable)
        self.values[variable] = value
        yield
        if before is None:
            del self.values[variable]
        else:
            self.values[variable] = before


# ---------------------------------------------------------------- values


def integer(number: int) -> Value:
    """An int64 constant."""
    return Value("", INT64, 1, (number + 2**63) % 2**64 - 2**63)


def boolean(value: bool) -> Value:
    """A bool constant."""
    return Value("true" if value else "false", BOOL)


def lane_flags(flags: list[bool]) -> Value:
    """Known bools, one for every lane; a uniform one when they are equal."""
    if len(set(flags)) == 1:
        return boolean(flags[0])
    return Value("<" + ", ".join(f"i1 {str(f).lower()}" for f in flags) + ">", BOOL, len(flags))


def known_flags(text: str, lanes: int) -> list[bool] | None:
    """The lanes of a bool operand text, None when they are not known while emitting."""
    if text in ("true", "false"):
        return [text == "true"] * lanes
    return [f.endswith("true") for f in text[1:-1].split(", ")] if text.startswith("<i1") else None


def literal(value: int | float, dtype: DType) -> Value:
    """A constant of a compute type."""
    if dtype is INT64:
        return integer(int(value))
    if dtype is BOOL:
        return boolean(bool(value))
    if dtype.is_float:
        return Value(float_text(float(value), dtype), dtype)
    bits = dtype.bits
    return Value(str((int(value) + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)), dtype)


def iota(lanes: int, scalar: str = "i64") -> str:
    """The vector 0, 1, 2, ..."""
    return "<" + ", ".join(f"{scalar} {i}" for i in range(lanes)) + ">"


def splat(e: Emitter, text: str, dtype: DType, lanes: int) -> str:
    """A scalar in every lane."""
    scalar, vector = type_text(dtype), type_text(dtype, lanes)
    if not text.startswith("%"):
        return f"splat ({scalar} {text})"
    one = e.code.pure(f"insertelement {vector} poison, {scalar} {text}, i64 0", text)
    zeros = f"<{lanes} x i32> zeroinitializer"
    return e.code.pure(f"shufflevector {vector} {one}, {vector} poison, {zeros}", one)


def scalar_text(e: Emitter, v: Value) -> str:
    """The operand text of a uniform value, or of lane 0 of a linear one."""
    if v.text == "":
        return str(v.plus)
    if v.plus:
        return e.code.pure(f"add i64 {v.text}, {v.plus}", v.text)
    return v.text


def vector_text(e: Emitter, v: Value, lanes: int) -> str:
    """The operand text of `v` as a vector of `lanes`."""
    if v.lanes == 1:
        return splat(e, scalar_text(e, v), v.dtype, lanes)
    if v.step is None:
        return v.text
    vector = type_text(INT64, lanes)
    base = splat(e, scalar_text(e, v), INT64, lanes)
    steps = iota(lanes)
    if v.step.number != 1:
        step = splat(e, scalar_text(e, v.step), INT64, lanes)
        steps = e.code.pure(f"mul {vector} {steps}, {step}", step)
    return e.code.pure(f"add {vector} {base}, {steps}", base, steps)


def operands(e: Emitter, *values: Value) -> tuple[int, list[str]]:
    """The widest lane count among `values`, and all of them as operand texts of it."""
    lanes = max(v.lanes for v in values)
    if lanes == 1:
        return 1, [scalar_text(e, v) for v in values]
    return lanes, [vector_text(e, v, lanes) for v in values]


def is_linear(v: Value) -> bool:
    """Whether an int64 is uniform or linear in the lane."""
    return v.lanes == 1 or v.step is not None


def plain(instruction: str, v: Value) -> Value:
    """`v`'s type and lanes around a new text."""
    return Value(instruction, v.dtype, v.lanes)


# ---------------------------------------------------------------- int64, linear in the lane


def add(e: Emitter, a: Value, b: Value) -> Value:
    """a + b on int64."""
    lanes = max(a.lanes, b.lanes)
    if not (is_linear(a) and is_linear(b)):
        lanes, (x, y) = operands(e, a, b)
        return Value(e.code.pure(f"add {type_text(INT64, lanes)} {x}, {y}", x, y), INT64, lanes)
    step = a.step if b.step is None else b.step
    if a.step is not None and b.step is not None:
        step = add(e, a.step, b.step)
    text = a.text or b.text
    if a.text and b.text:
        x, y = sorted((a.text, b.text), key=lambda t: e.code.depth.get(t, 0))
        text = e.code.pure(f"add i64 {x}, {y}", x, y)
    return linear(text, a.plus + b.plus, step, lanes)


def linear(text: str, plus: int, step: Value | None, lanes: int) -> Value:
    """text + plus + step * lane, uniform when the step is 0."""
    if step is None or step.number == 0:
        step, lanes = None, 1
    return Value(text, INT64, lanes, (plus + 2**63) % 2**64 - 2**63, step)


def multiply(e: Emitter, a: Value, b: Value) -> Value:
    """a * b on int64."""
    if a.lanes > 1 or (a.number is None and b.lanes == 1 and b.number is not None):
        a, b = b, a
    if a.lanes > 1 or not is_linear(b):
        lanes, (x, y) = operands(e, a, b)
        return Value(e.code.pure(f"mul {type_text(INT64, lanes)} {x}, {y}", x, y), INT64, lanes)
    if a.number is not None:
        return scaled(e, b, a.number)
    # a is uniform and unknown: distribute, so that constant offsets stay apart
    step = None if b.step is None else multiply(e, a, b.step)
    product = scaled(e, a, b.plus)
    if b.text:
        x = scalar_text(e, a)
        left, right = sorted((x, b.text))
        text = e.code.pure(f"mul i64 {left}, {right}", left, right)
        product = add(e, Value(text, INT64), product)
    return linear(product.text, product.plus, step, b.lanes)


def scaled(e: Emitter, v: Value, factor: int) -> Value:
    """v * factor for a linear or uniform `v`."""
    if factor == 0:
        return integer(0)
    if factor == 1:
        return v
    text = v.text and e.code.pure(f"mul i64 {v.text}, {factor}", v.text)
    step = None if v.step is None else scaled(e, v.step, factor)
    return linear(text, v.plus * factor, step, v.lanes)


def subtract(e: Emitter, a: Value, b: Value) -> Value:
    """a - b on int64."""
    if not (is_linear(a) and is_linear(b)):
        lanes, (x, y) = operands(e, a, b)
        return Value(e.code.pure(f"sub {type_text(INT64, lanes)} {x}, {y}", x, y), INT64, lanes)
    if b.text == "":
        return add(e, a, scaled(e, b, -1))
    text = e.code.pure(f"sub i64 {a.text or '0'}, {b.text}", a.text, b.text)
    step = None if b.step is None else scaled(e, b.step, -1)
    if a.step is not None:
        step = a.step if step is None else add(e, a.step, step)
    return linear(text, a.plus - b.plus, step, max(a.lanes, b.lanes))
