"""A frame: everything one call at a time writes to (PRODUCT 4.2, rule 9).

In: a binding and the addresses of the arrays. Out: the arrays are filled.
Invariant: a frame is used by one call at a time; its words are laid out as codegen/support/gang.ll
reads them. Slots are kept per shape, so a call with a known shape writes a dozen words.
"""

from collections.abc import Sequence

import numpy as np

from fissile.runtime.bind import Binding
from fissile.runtime.hold import Claimed, Hold
from fissile.runtime.manifest import memory_limit
from fissile.runtime.memory import Arena, Bytes, Words, address_of, aligned_words, check_limit
from fissile.runtime.program import Program
from fissile.runtime.vendor import Evaluator

_CONTEXT_WORDS = 16
_SLOTS, _STEPS, _STEP_COUNT, _SCRATCH, _STRIDE, _GANG, _STAMPS = 0, 5, 6, 7, 8, 12, 13
_LINE_WORDS = 8
_KEPT_SHAPES = 32


class Frame(Claimed):
    """State of one call: `run(binding, inputs, outputs, gang)` with addresses.

    hold: that of the first call that uses it.
    """

    def __init__(self, program: Program, threads: int, hold: Hold) -> None:
        self.holder = hold
        plan = program.plan
        lines = 2 * plan.width * threads
        self._program = program
        self.threads = threads
        self._limit = memory_limit(program.artifact.manifest)
        self._arena = Arena()
        self._scratch = Arena()
        self._slots: dict[Binding, tuple[int, Words]] = {}
        self._memory = [
            aligned_words(_CONTEXT_WORDS),
            aligned_words(2 + len(plan.inputs) + len(plan.outputs)),
            aligned_words(lines * _LINE_WORDS),
        ]
        context, bases, counters = self._memory
        self._context = context.data
        self._bases = bases.data
        self._address = address_of(context)
        self._bases[1] = program.weights
        context[1:12] = (
            address_of(bases),
            address_of(plan.patches),
            len(plan.patches),
            address_of(program.launches),
            address_of(plan.steps),
            len(plan.steps) - 1,
            0,
            0,
            address_of(counters),
            plan.width,
            threads,
        )
        self.last_used = 0.0
        self.evaluators: dict[int, Evaluator] = {}

    def reserve(self, binding: Binding) -> None:
        """Make slots and arena for a shape ahead of its first run. OutOfMemory F211, F213."""
        self._context[_SLOTS] = self._slots_of(binding)
        self._bases[0] = self._arena.reserve(binding.arena)
        self._context[_SCRATCH] = self._scratch.reserve(binding.scratch * self.threads)
        self._context[_STRIDE] = binding.scratch

    def run(
        self, binding: Binding, addresses: Sequence[int], gang: int = 0, stamps: int = 0
    ) -> None:
        """Run once. addresses: inputs then outputs; gang: block address, 0 = alone; stamps: ditto."""
        self.reserve(binding)
        bases, context = self._bases, self._context
        for index, address in enumerate(addresses, 2):
            bases[index] = address
        context[_GANG] = gang
        context[_STAMPS] = stamps
        self._program.image.run(self._address)

    def begin(self, binding: Binding, inputs: Sequence[int], gang: int, stamps: int) -> Words:
        """Start a call that runs in segments; its slots, which are this frame's own."""
        self.reserve(binding)
        for index, address in enumerate(inputs, 2):
            self._bases[index] = address
        for index in range(len(self._program.plan.outputs)):
            self.place_output(index, 0)  # not those of the call before
        self._context[_GANG] = gang
        self._context[_STAMPS] = stamps
        return self._slots[binding][1]

    def extend(self, arena: int, scratch: int) -> None:
        """Room for what is known by now, in bytes (scratch: per thread); the arena keeps its contents."""
        stride = -(-scratch // 64) * 64
        self._check(arena, stride)
        self._bases[0] = self._arena.extend(arena)
        self._context[_SCRATCH] = self._scratch.reserve(stride * self.threads)
        self._context[_STRIDE] = stride

    def _check(self, arena: int, scratch: int) -> None:
        check_limit(self._limit, self._program.weight_bytes, arena, scratch * self.threads)

    def place_output(self, index: int, address: int) -> None:
        """Say where output number `index` is."""
        self._bases[2 + len(self._program.plan.inputs) + index] = address

    def run_steps(self, first: int, end: int) -> None:
        """Run the steps from number `first` up to `end`."""
        if first < end:
            self._context[_STEPS] = address_of(self._program.plan.steps) + 8 * first
            self._context[_STEP_COUNT] = end - first
            self._program.image.run(self._address)

    def bytes_at(self, offset: int, size: int) -> Bytes:
        """A part of the arena."""
        memory = self._arena.memory
        if memory is None:
            return np.empty(0, np.uint8)
        return memory[offset : offset + size]

    def _slots_of(self, binding: Binding) -> int:
        known = self._slots.get(binding)
        if known is None:
            self._check(binding.arena, binding.scratch)
            if len(self._slots) >= _KEPT_SHAPES:
                del self._slots[next(iter(self._slots))]
            slots = aligned_words(len(binding.slots))
            slots[:] = binding.slots
            known = self._slots[binding] = (address_of(slots), slots)
        return known[0]
