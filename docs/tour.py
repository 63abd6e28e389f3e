"""A walk from an ONNX softmax to machine code: every level is printed, and run, and compared.

    python docs/tour.py

Read it from top to bottom beside its output. Each section takes what the one before has made, shows
it as text, and computes the same softmax with it: every level of the compiler has a meaning of its
own, in numpy or in an interpreter, and each later level is tested against the earlier ones. What
stands here is what `fissile.compile` does in one call; `fissile/pipeline.py` is the list of stages.
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import fissile
from fissile.errors import OptionError, ScheduleError
from fissile.ir.graph import bind, evaluate
from fissile.ir.interpret import interpret
from fissile.ir.loop import Buffer, Var
from fissile.ir.text import parse, show
from fissile.options import Options, resolve_target
from fissile.orchestrate import plan as plans
from fissile.pipeline import STAGES, Work
from fissile.rewrite import RULES
from fissile.schedule.steps import ComputeAt, Fuse, Parallel, Split, Step, Vectorize, apply

Floats = NDArray[np.float32]


def title(text: str) -> None:
    """Begin a section."""
    print(f"\n\n==== {text} ".ljust(100, "=") + "\n")


def agree(name: str, found: Floats, wanted: Floats) -> None:
    """Print the largest difference, and stop the tour when it is too large."""
    difference = float(np.abs(found - wanted).max())
    print(f"\n-> {name}: largest difference {difference:.1e}")
    if not difference <= 1e-6:
        sys.exit(f"{name} is wrong")


# ==== 1. An ONNX model ============================================================================
#
# One operator. Both extents have names instead of numbers: the same artifact will run any of them.

title("1. the ONNX model")
x_info = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", "columns"])
y_info = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", "columns"])
softmax = helper.make_node("Softmax", ["x"], ["y"], axis=-1, name="attention")
onnx_graph = helper.make_graph([softmax], "tour", [x_info], [y_info])
opsets = [helper.make_opsetid("", 17)]
model = helper.make_model(onnx_graph, opset_imports=opsets, ir_version=8)
print(onnx.printer.to_text(model))

# The meaning of that model is what ONNX's own reference says about it. An odd extent on purpose:
# 21 is no multiple of any vector length. The large values overflow a softmax without its maximum.
sizes = {"rows": 5, "columns": 21}
x: Floats = np.random.default_rng(0).standard_normal((5, 21)).astype(np.float32)
x[2] += 1000
wanted: Floats = ReferenceEvaluator(model).run(None, {"x": x})[0]


# ==== 2. The stages ===============================================================================
#
# The compiler is a tuple of stages, each a function from what is known so far (`Work`) to a little
# more. A stage can print what it made, which is also what `fissile show MODEL --after NAME` prints.

title("2. the stages")
target = resolve_target("native")
work = Work(model, None, (target,), threads=1, options=Options())
stages = {stage.name: stage for stage in STAGES}
print(" -> ".join(stages))
print(f"for {target.name}: {target.vector_bits} bit vectors, {target.vector_registers} of them")


def advance(name: str) -> None:
    """Run the stage called `name` and print what it made."""
    global work
    work = stages[name].run(work)
    print(stages[name].show(work))


# ==== 3. Operator graph ===========================================================================
#
# ONNX without protobuf: names, attributes as Python values, weights as numpy arrays (here none).

title("3. operator graph (import)")
advance("import")


# ==== 4. Primitive graph ==========================================================================
#
# Fission splits the operator into primitives of tensor algebra: elementwise, reduce, broadcast,
# layout, linear. There are a few dozen of them, each one row in a table (type rule, numpy meaning,
# definition by indices), and nothing to the right of here knows what an ONNX operator is. The
# maximum is subtracted first: correct before fast.

title("4. primitive graph (fission)")
advance("fission")
graph = work.graph
assert graph is not None
agree("evaluated node by node in numpy", evaluate(graph, {"x": x}, sizes)["y"], wanted)


# ==== 5. Canonical form ===========================================================================
#
# Rules with names and laws rewrite the graph until none applies. Softmax is canonical already; in
# ResNet-50 they fire hundreds of times (batch normalization goes into weights, for one). Any rule
# can be switched off by name, and a name that no rule has is answered with the nearest one.

title("5. canonical form (canonicalize)")
for rule in list(RULES.values())[:4]:
    print(f"{rule.name:20} {rule.law}")
print(f"... and {len(RULES) - 4} more")
advance("canonicalize")
print(f"\nfired: {dict(work.fired or {}) or 'none'}")
try:
    stages["canonicalize"].run(replace(work, options=Options(disable=("merge_transpose",))))
except OptionError as error:
    print(f"\n{error}")


# ==== 6. Plan =====================================================================================
#
# Which kernels compute the graph. All five computing primitives share their rows, so one kernel is
# enough, and nothing is stored but the result. A larger network is a tuple of steps of such kernels;
# the kernels of one step do not depend on each other.

title("6. plan")
advance("plan")
plan = work.plan
assert plan is not None
agree("evaluated kernel by kernel", plans.evaluate(plan, {"x": x}, sizes)["y"], wanted)


# ==== 7. Loop program =============================================================================
#
# Each kernel becomes a program of loops over flat memory. Loops are serial, parallel (tasks that
# threads share), vectorized (lanes of one instruction) or unrolled; buffers live in memory, in
# scratch or in registers; extents are parameters. One pass finds the maximum of a row, one stores
# the exponentials and sums them, one divides: the row stays in the cache.

title("7. loop program (lower)")
advance("lower")
(loops,) = work.loops
(lowered,) = (row for _, row in loops.lowered)
function = lowered.function



# The interpreter checks every access, and that nothing is read before it was written. The launch
# says what is passed for each parameter: a tensor or an extent.
arguments: dict[str, NDArray[np.float32] | int] = {}
result = np.zeros_like(x)
for parameter, argument in zip(function.params, lowered.arguments, strict=True):
    if isinstance(parameter, Buffer):
        is_input = getattr(argument, "name", "") == "input"
        arguments[parameter.name] = x if is_input else result
    elif isinstance(parameter, Var):
        arguments[parameter.name] = bind(argument, sizes)
interpret(function, arguments)
agree("the loop program, interpreted", result, wanted)


# ==== 8. Schedule steps ===========================================================================
#
# How does one get from the obvious program to a fast one? By steps, each a law that keeps the
# meaning, or a refusal that says why it would not. This is the softmax as one would write it down.

title("8. schedule steps on a loop program")
naive = parse("""def softmax(x: float32[M, 32], y: float32[M, 32], M: int64):
    e: scratch(float32[M, 32])
    for i in range(M):
        for j in range(32):
            e[i, j] = exp(x[i, j])
    for r in range(M):
        total: register(float32[1])
        total[0] = 0.0
        for k in range(32):
            total[0] = total[0] + e[r, k]
        for c in range(32):
            y[r, c] = e[r, c] / total[0]
""")
print(show(naive))
schedule: tuple[Step, ...] = (
    ComputeAt("e", "r"),  # only one row of e at a time
    Parallel("r"),  # rows are tasks
    Split("c", 8),  # the division in pieces of eight columns,
    Vectorize("c_1"),  # each piece one vector instruction
)
program = naive
for step in schedule:
    program = step.apply(program)
    print(f"\n# after {step}\n{show(program)}")

# Two steps that would break their law. Lanes cannot share one accumulator; loops that are not
# nested cannot become one.
for refused in (Vectorize("k"), Fuse("i", "r")):
    try:
        apply(naive, (refused,))
    except ScheduleError as error:
        print(f"\n{error}")

square: Floats = np.random.default_rng(1).standard_normal((3, 32)).astype(np.float32)
outputs = [np.zeros_like(square), np.zeros_like(square)]
for f, output in zip((naive, program), outputs, strict=True):
    interpret(f, {"x": square, "y": output, "M": 3})
agree("scheduled against unscheduled, interpreted", outputs[1], outputs[0])


# ==== 9. LLVM text ================================================================================
#
# Emission writes LLVM's language line by line. Vectorized loops become vector instructions, masked
# where a row ends. There is no call of a math library: exp is a polynomial of our own, accurate to
# a few units in the last place, and written into the kernel as vector code.

title("9. LLVM text (emit)")
work = stages["emit"].run(work)
text = "\n".join(work.texts[0])
lines = text.splitlines()
vectors = [line for line in lines if "@llvm.fma.v" in line]
print("\n".join(lines[:24]))
print(f"... {len(lines)} lines in all; the polynomial of exp is in these:")
print("\n".join(vectors[:8]))


# ==== 10. Machine code ============================================================================
#
# LLVM compiles the modules in processes of their own. Our linker joins the objects into one flat
# image: position-independent, nothing writable, no undefined symbol. So a loader needs mmap only.

title("10. machine code (build)")
advance("build")
(code,) = work.code
start = code.image.symbols["k0"]
print(f"\n{len(code.image.code)} bytes; kernel k0 begins with {code.image.code[start:start + 16].hex(' ')}")


# ==== 11. Artifact ================================================================================
#
# Image, weights, plan and manifest go into one file whose members lie on pages of their own. The
# same model gives the same bytes, whenever and wherever it is compiled.

title("11. artifact")
work = stages["artifact"].run(work)
folder = tempfile.TemporaryDirectory()
path = Path(folder.name) / "tour.fsl"
path.write_bytes(work.artifact)
exe = fissile.load(path, threads=1)
for name, (offset, size) in exe.program.artifact.spans.items():
    print(f"{offset:8} {size:8}  {name}")


# ==== 12. Run =====================================================================================
#
# The loader has mapped the file. A call binds the extents (native code computes all that depends on
# them), and makes one native call. Any shape, including none at all; the same bits at any number of
# threads.

title("12. run")
print(exe)
agree("machine code", exe.run({"x": x})["y"], wanted)
for shape in ((1, 1), (3, 1000), (0, 7), (257, 64)):
    z: Floats = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    one, two = exe.run({"x": z})["y"], exe.with_threads(2).run({"x": z})["y"]
    reference: Floats = ReferenceEvaluator(model).run(None, {"x": z})[0]
    close = np.allclose(one, reference, rtol=1e-5, atol=1e-7)
    print(f"{shape!s:10} agrees: {close}   same bits with two threads: {np.array_equal(one, two)}")
    if not (close and np.array_equal(one, two)):
        sys.exit("the machine code is wrong")

# A mistake is answered with what was wanted, and how to mend it.
try:
    exe.run({"x": x.astype(np.float64)})
except fissile.FissileError as error:
    print(f"\n{error}")

exe.close()
folder.cleanup()
