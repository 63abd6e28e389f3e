"""LLVM in this process, for many small models: to start its workers anew for each would take most of the time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fissile.codegen.worker import Machine, compile_text, target_machine
from fissile.target import Target

LEVEL = 1  # what the pipeline asks for


@dataclass
class Here:
    """Does what `codegen.build.Compiling` does, without workers; a text that came before is not compiled again."""

    machine: Any
    made: dict[str, bytes]
    texts: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        """One more module."""
        self.texts.append(text)

    def objects(self) -> list[bytes]:
        """The objects of all texts, in their order."""
        for text in self.texts:
            if text not in self.made:
                self.made[text] = compile_text(text, self.machine, LEVEL)
        return [self.made[text] for text in self.texts]


@contextmanager
def compiling_here(target: Target, jobs: int | None = None) -> Iterator[Here]:
    """In place of `codegen.build.compiling`."""
    if target.name not in _KNOWN:
        of = Machine(target.llvm_triple, target.llvm_cpu, target.llvm_features, LEVEL)
        _KNOWN[target.name] = target_machine(of), {}
    yield Here(*_KNOWN[target.name])


_KNOWN: dict[str, tuple[Any, dict[str, bytes]]] = {}
