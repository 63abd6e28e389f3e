"""A child process that turns LLVM text into objects: `python -m fissile.codegen.worker PARENT`.

In: frames on stdin (length, then bytes): the machine as JSON, then one module per frame. Out: for
each module a frame on stdout, its first byte 1 (an object follows) or 0 (a message follows).
Invariant: nothing else is written to stdout; imports nothing but llvmlite and the standard library; it is gone once the
process PARENT is.
"""

from __future__ import annotations

import json
import struct
import sys
from dataclasses import dataclass
from typing import Any, BinaryIO

import llvmlite.binding as llvm

from fissile.child import end_with_parent

LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class Machine:
    """What LLVM is told: triple, cpu, features, and how hard to optimize (0 to 3)."""

    triple: str
    cpu: str
    features: str
    level: int


def write_frame(stream: BinaryIO, payload: bytes) -> None:
    """Write length and bytes."""
    stream.write(LENGTH.pack(len(payload)) + payload)
    stream.flush()


def read_frame(stream: BinaryIO) -> bytes | None:
    """The next frame's bytes; None at the end of the stream."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(head)
    payload = stream.read(size)
    return payload if len(payload) == size else None


def target_machine(machine: Machine) -> Any:
    """LLVM's target machine: position-independent, small code model."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(machine.triple)
    return target.create_target_machine(
        cpu=machine.cpu,
        features=machine.features,
        opt=min(machine.level + 1, 3) if machine.level else 0,
        reloc="pic",
        codemodel="small",
    )


def optimize(module: Any, tm: Any, level: int) -> None:
    """Run the passes: emission has placed and shared instructions, so level 1 is a short list."""
    if level == 0:
        return
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_unrolling = False
    options.loop_interleaving = False
    builder = llvm.create_pass_builder(tm, options)
    if level == 1:
        passes = llvm.create_new_module_pass_manager()
        passes.add_always_inliner_pass()
        passes.add_sroa_pass()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        passes.add_new_gvn_pass()
    else:
        passes = builder.getModulePassManager()
    passes.run(module, builder)


def compile_text(text: str, tm: Any, level: int) -> bytes:
    """An ELF object of one module; RuntimeError when LLVM refuses the text."""
    module = llvm.parse_assembly(text)
    module.verify()
    optimize(module, tm, level)
    return bytes(tm.emit_object(module))


def main() -> None:
    """Serve frames until stdin ends."""
    end_with_parent()
    first = read_frame(sys.stdin.buffer)
    if first is None:
        return
    machine = Machine(**json.loads(first))
    tm = target_machine(machine)
    while (frame := read_frame(sys.stdin.buffer)) is not None:
        try:
            answer = b"\x01" + compile_text(frame.decode(), tm, machine.level)
        except RuntimeError as problem:
            answer = b"\x00" + str(problem).encode()
        write_frame(sys.stdout.buffer, answer)


if __name__ == "__main__":
    main()
