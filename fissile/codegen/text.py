"""LLVM text under construction: names, blocks, and one copy of every pure instruction.

In: instructions as text with the names they use. Out: the lines of a function.
Invariant: a pure instruction stands before the outermost loop in which nothing it uses changes, and
is written once where it dominates its users; so index arithmetic needs no optimizer afterwards.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fissile.ir.dtype import BOOL, DType


@dataclass
class Level:
    """A loop body or a branch: `before` stands just before it, `known` maps instruction to name."""

    is_loop: bool
    before: list[Any]
    known: dict[str, str] = field(default_factory=dict)


class Code:
    """The body of one function: nested lists of lines, flattened by `lines`."""

    def __init__(self, prefix: str = "v") -> None:
        self.prefix = prefix
        self.tree: list[Any] = []
        self.current = self.tree
        self.levels = [Level(False, [])]
        self.depth: dict[str, int] = {}
        self.count = 0
        self.block = "entry"
        self.allocas: list[str] = []

    def name(self) -> str:
        """A fresh value name, known at the current level."""
        self.count += 1
        made = f"%{self.prefix}{self.count}"
        self.depth[made] = len(self.levels) - 1
        return made

    def label(self) -> str:
        """A fresh block label."""
        self.count += 1
        return f"b{self.count}"

    def line(self, text: str) -> None:
        """Write one line here."""
        self.current.append(text)

    def effect(self, instruction: str) -> str:
        """Write an instruction that must stay where it is; its result's name."""
        made = self.name()
        self.current.append(f"{made} = {instruction}")
        return made

    def pure(self, instruction: str, *operands: str) -> str:
        """The name of an instruction's result; hoisted and shared where its operands allow."""
        depth = self.depth
        lowest = 0
        for operand in operands:
            if (at := depth.get(operand, 0)) > lowest:
                lowest = at
        levels = self.levels
        for level in range(lowest, len(levels)):
            if (found := levels[level].known.get(instruction)) is not None:
                return found
        made = self.name()
        for level in range(lowest + 1, len(levels)):
            if levels[level].is_loop:
                levels[level].before.append(f"{made} = {instruction}")
                depth[made] = level - 1
                levels[level - 1].known[instruction] = made
                return made
        self.current.append(f"{made} = {instruction}")
        levels[-1].known[instruction] = made
        return made

    def invariant(self, instruction: str, *operands: str) -> str:
        """The name of a load's result that nothing changes.

        Written once where it dominates, and before the innermost loop when its address does not
        change in it: the loop's body runs at least once behind the place where that puts it.
        """
        for level in self.levels:
            if (found := level.known.get(instruction)) is not None:
                return found
        top = len(self.levels) - 1
        innermost = self.levels[top]
        if innermost.is_loop and all(self.depth.get(o, 0) < top for o in operands):
            made = self.name()
            innermost.before.append(f"{made} = {instruction}")
            self.depth[made] = top - 1
            self.levels[top - 1].known[instruction] = made
            return made
        made = self.effect(instruction)
        innermost.known[instruction] = made
        return made

    def enter(self, is_loop: bool) -> None:
        """Open a level: what follows is in a loop's body or in a branch."""
        before: list[Any] = []
        self.current.append(before)
        self.levels.append(Level(is_loop, before))

    def leave(self) -> None:
        """Close the innermost level."""
        self.levels.pop()

    def start(self, label: str) -> None:
        """Begin block `label`."""
        self.current.append(f"{label}:")
        self.block = label

    def branch(self, label: str) -> None:
        """Jump to `label`."""
        self.current.append(f"br label %{label}")

    def branch_if(self, condition: str, yes: str, no: str) -> None:
        """Jump to `yes` where the i1 `condition` holds, else to `no`."""
        self.current.append(f"br i1 {condition}, label %{yes}, label %{no}")

    def lines(self) -> Iterator[str]:
        """Every line in order."""
        yield from self.allocas
        yield from flatten(self.tree)


def flatten(tree: list[Any]) -> Iterator[str]:
    """The strings of nested lists in order."""
    for item in tree:
        if isinstance(item, str):
            yield item
        else:
            yield from flatten(item)


def type_text(dtype: DType, lanes: int = 1) -> str:
    """The LLVM type of `lanes` values of a compute type; bools are i1 in registers."""
    scalar = "i1" if dtype is BOOL else dtype.llvm
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def memory_text(dtype: DType, lanes: int = 1) -> str:
    """The LLVM type of `lanes` stored elements."""
    return dtype.llvm if lanes == 1 else f"<{lanes} x {dtype.llvm}>"


def suffix(text: str) -> str:
    """How an intrinsic's name spells a type: `<8 x float>` is v8f32."""
    if text.startswith("<"):
        count, _, scalar = text[1:-1].partition(" x ")
        return f"v{count}{suffix(scalar)}"
    return {"float": "f32", "double": "f64", "half": "f16"}.get(text, text)


def float_text(value: float, dtype: DType) -> str:
    """A float literal, exact: LLVM writes every width as the bits of a double."""
    rounded = float(dtype.numpy.type(value))
    return f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"
