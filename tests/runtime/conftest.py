"""Two artifacts made of kernels written by hand, and children that load them.

`rows`: z = (x + y) * w and s = row sums of x + y, for x, y of shape [n, 3]; two outputs, a weight,
an arena, two steps. `chain`: 200 steps of b[i] = a[i] + a[i + 1 mod n] on int64, which is wrong as
soon as a thread passes a barrier too early. Generated code runs in child processes only.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from fissile.codegen.link import link
from fissile.codegen.support import ENTRIES, support_text
from fissile.runtime.artifact import Contents, TargetCode, write_artifact
from fissile.runtime.seal import sealed
from fissile.runtime.weights import Weight
from fissile.target import named

ROOT = Path(__file__).parents[2]
CHAIN_STEPS = 200
Child = Callable[..., Any]

ROWS = """
define hidden void @fissile_bind(ptr %symbols, ptr %slots) {
  %n = load i64, ptr %symbols
  %bytes = mul i64 %n, 12
  %up = add i64 %bytes, 63
  %arena = and i64 %up, -64
  %p1 = getelementptr i64, ptr %slots, i64 1
  store i64 %n, ptr %p1
  %p3 = getelementptr i64, ptr %slots, i64 3
  store i64 %arena, ptr %p3
  ret void
}
define hidden void @k0(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
entry:
  %x = load ptr, ptr %args
  %y.p = getelementptr ptr, ptr %args, i64 1
  %y = load ptr, ptr %y.p
  %t.p = getelementptr ptr, ptr %args, i64 2
  %t = load ptr, ptr %t.p
  %from = mul i64 %begin, 3
  %to = mul i64 %end, 3
  br label %loop
loop:
  %i = phi i64 [ %from, %entry ], [ %i.next, %body ]
  %more = icmp slt i64 %i, %to
  br i1 %more, label %body, label %done
body:
  %xi = getelementptr float, ptr %x, i64 %i
  %xv = load float, ptr %xi
  %yi = getelementptr float, ptr %y, i64 %i
  %yv = load float, ptr %yi
  %v = fadd float %xv, %yv
  %ti = getelementptr float, ptr %t, i64 %i
  store float %v, ptr %ti
  %i.next = add i64 %i, 1
  br label %loop
done:
  ret void
}
define hidden void @k1(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
entry:
  %t = load ptr, ptr %args
  %w.p = getelementptr ptr, ptr %args, i64 1
  %w = load ptr, ptr %w.p
  %z.p = getelementptr ptr, ptr %args, i64 2
  %z = load ptr, ptr %z.p
  %from = mul i64 %begin, 3
  %to = mul i64 %end, 3
  br label %loop
loop:
  %i = phi i64 [ %from, %entry ], [ %i.next, %body ]
  %more = icmp slt i64 %i, %to
  br i1 %more, label %body, label %done
body:
  %ti = getelementptr float, ptr %t, i64 %i
  %tv = load float, ptr %ti
  %j = urem i64 %i, 3
  %wi = getelementptr float, ptr %w, i64 %j
  %wv = load float, ptr %wi
  %v = fmul float %tv, %wv
  %zi = getelementptr float, ptr %z, i64 %i
  store float %v, ptr %zi
  %i.next = add i64 %i, 1
  br label %loop
done:
  ret void
}
define hidden void @k2(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
entry:
  %t = load ptr, ptr %args
  %s.p = getelementptr ptr, ptr %args, i64 1
  %s = load ptr, ptr %s.p
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %i.next, %next ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %body, label %done
body:
  %row = mul i64 %i, 3
  %t0 = getelementptr float, ptr %t, i64 %row
  %v0 = load float, ptr %t0
  %t1 = getelementptr float, ptr %t0, i64 1
  %v1 = load float, ptr %t1
  %t2 = getelementptr float, ptr %t0, i64 2
  %v2 = load float, ptr %t2
  %a = fadd float %v0, %v1
  %b = fadd float %a, %v2
  %si = getelementptr float, ptr %s, i64 %i
  store float %b, ptr %si
  ; scratch must be this thread's own: what was stored is read back
  store i64 %i, ptr %scratch
  %back = load volatile i64, ptr %scratch
  %same = icmp eq i64 %back, %i
  br i1 %same, label %next, label %trap
trap:
  call void @llvm.trap()
  unreachable
next:
  %i.next = add i64 %i, 1
  br label %loop
done:
  ret void
}
declare void @llvm.trap()
"""

CHAIN = """
define hidden void @fissile_bind(ptr %symbols, ptr %slots) {
  %n = load i64, ptr %symbols
  %p1 = getelementptr i64, ptr %slots, i64 1
  store i64 %n, ptr %p1
  %bytes = mul i64 %n, 8
  %up = add i64 %bytes, 63
  %half = and i64 %up, -64
  %p2 = getelementptr i64, ptr %slots, i64 2
  store i64 %half, ptr %p2
  %whole = mul i64 %half, 2
  %p3 = getelementptr i64, ptr %slots, i64 3
  store i64 %whole, ptr %p3
  %p12 = getelementptr i64, ptr %slots, i64 12
  store i64 %n, ptr %p12
  %p15 = getelementptr i64, ptr %slots, i64 15
  store i64 %n, ptr %p15
  %p18 = getelementptr i64, ptr %slots, i64 18
  store i64 %n, ptr %p18
  %p21 = getelementptr i64, ptr %slots, i64 21
  store i64 %n, ptr %p21
  ret void
}
define hidden void @k0(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
entry:
  %a = load ptr, ptr %args
  %b.p = getelementptr ptr, ptr %args, i64 1
  %b = load ptr, ptr %b.p
  %n.p = getelementptr i64, ptr %args, i64 2
  %n = load i64, ptr %n.p
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %i.next, %body ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %body, label %done
body:
  %i.next = add i64 %i, 1
  %j = urem i64 %i.next, %n
  %ai = getelementptr i64, ptr %a, i64 %i
  %av = load i64, ptr %ai
  %aj = getelementptr i64, ptr %a, i64 %j
  %aw = load i64, ptr %aj
  %v = add i64 %av, %aw
  %bi = getelementptr i64, ptr %b, i64 %i
  store i64 %v, ptr %bi
  br label %loop
done:
  ret void
}
"""


def build_object(text: str, target: str = "x86-64-v3") -> bytes:
    """LLVM text -> a position-independent object."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    goal = named(target)
    module = llvm.parse_assembly(text)
    module.verify()
    machine = llvm.Target.from_triple(goal.llvm_triple).create_target_machine(
        cpu=goal.llvm_cpu, features=goal.llvm_features, opt=2, reloc="pic", codemodel="small"
    )
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(module, builder)
    return bytes(machine.emit_object(module))


def tensor(name: str, dtype: str, shape: list[int | str], slots: list[int]) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": shape, "slots": slots}


def launch(kernel: str, first: int, arguments: int, step: int) -> dict[str, Any]:
    row = {"kernel": kernel, "first": first, "arguments": arguments, "tasks": 1, "step": step}
    return {**row, "nodes": [f"/{kernel}"]}


def rows_plan() -> dict[str, Any]:
    """Slots: 1 = n, 2 = 3, 3 = arena bytes, 4 = offset of w, 6 = scratch bytes; arguments from 10, 20, 30 on."""
    template = [0] * 40
    template[2] = 3
    template[6] = 8
    return {
        "symbols": [{"name": "n", "input": 0, "axis": 0, "scale": 1, "offset": 0}],
        "inputs": [tensor(name, "float32", ["n", 3], [1, 2]) for name in "xy"],
        "outputs": [tensor("z", "float32", ["n", 3], [1, 2]), tensor("s", "float32", ["n"], [1])],
        "template": template,
        "patches": [[10, 2, 0], [11, 3, 0], [12, 0, 0], [20, 0, 0], [21, 1, 4], [22, 4, 0]]
        + [[30, 0, 0], [31, 5, 0]],
        "launches": [launch("k0", 10, 3, 0), launch("k1", 20, 3, 1), launch("k2", 30, 2, 1)],
        "guards": [{"left": 1, "right": 5, "relation": "le", "message": "n is at most 100000"}],
        "scratch": 6,
    }


def chain_plan() -> dict[str, Any]:
    """Slots: 1 = n, 2 = offset of the second half, 3 = arena bytes; arguments from 10 on."""
    firsts = [10] + [13 if step % 2 else 16 for step in range(1, CHAIN_STEPS - 1)] + [19]
    return {
        "symbols": [{"name": "n", "input": 0, "axis": 0, "scale": 1, "offset": 0}],
        "inputs": [tensor("a", "int64", ["n"], [1])],
        "outputs": [tensor("b", "int64", ["n"], [1])],
        "template": [0] * 22,
        "patches": [[10, 2, 0], [11, 0, 0], [13, 0, 0], [14, 0, 2], [16, 0, 2], [17, 0, 0]]
        + [[19, 0, 0], [20, 3, 0]],
        "launches": [launch("k0", first, 3, step) for step, first in enumerate(firsts)],
        "guards": [],
        "scratch": 0,  # a slot that stays 0
    }


def contents(text: str, plan: dict[str, Any], weights: tuple[Weight, ...] = ()) -> Contents:
    """Compile, link with the support module, and complete the plan."""
    objects = [build_object(text), build_object(support_text())]
    kernels = sorted({row["kernel"] for row in plan["launches"]})
    image = link(objects, [*ENTRIES, "fissile_bind", *kernels])
    whole = {"format": [1, 0], "slots": len(plan["template"]), "arena": 3} | plan
    target = named("x86-64-v3")
    told = whole | {"entries": image.symbols}
    code = TargetCode(target.name, target.features, sealed(image.code, told), told)
    manifest = {"model": {"name": "toy.onnx"}, "metadata": {"key": "value"}, "foreign": []}
    return Contents(manifest, (code,), weights, {"kernels": len(kernels)})


def rows_contents() -> Contents:
    plan = rows_plan()
    plan["template"][5] = 100000
    pad = Weight("pad", "uint8", (5,), bytes(5))
    w = Weight("w", "float32", (3,), np.array([2, 3, 5], np.float32))
    plan["template"][4] = 64
    return contents(ROWS, plan, (pad, w))


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows.fsl and chain.fsl."""
    folder = tmp_path_factory.mktemp("toys")
    write_artifact(rows_contents(), folder / "rows.fsl")
    write_artifact(contents(CHAIN, chain_plan()), folder / "chain.fsl")
    return folder


@pytest.fixture
def child(toys: Path) -> Child:
    """`child(text)` runs it after a prelude in a new process and returns what it gave to `answer`."""
    prelude = (ROOT / "tests/runtime/prelude.txt").read_text(encoding="utf-8")

    def run(text: str, **environment: str) -> Any:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("FISSILE_", "OMP_"))}
        env |= {"PYTHONPATH": str(ROOT), "TOYS": str(toys)} | environment
        command = [sys.executable, "-c", prelude + "\n" + text]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run
