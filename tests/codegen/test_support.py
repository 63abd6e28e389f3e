"""Memory and conversion routines of the support module, run in a child against numpy."""

import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from fissile.codegen.link import link
from fissile.codegen.support import support_text

LOOP = """
define hidden void @{name}(ptr %in, ptr %out, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i.next, %loop ]
  %p = getelementptr {source}, ptr %in, i64 %i
  %x = load {source}, ptr %p
  %y = {convert}
  %q = getelementptr {result}, ptr %out, i64 %i
  store {result} %y, ptr %q
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""
# name, element read, element written, how: calls of the routine, or what LLVM makes of an instruction
LOOPS = (
    ("f32_f16", "float", "half", "call half @__truncsfhf2(float %x)"),
    ("f64_f16", "double", "half", "fptrunc double %x to half"),
    ("f32_bf16", "float", "bfloat", "fptrunc float %x to bfloat"),
    ("f64_bf16", "double", "bfloat", "fptrunc double %x to bfloat"),
    ("f16_f32", "half", "float", "call float @__extendhfsf2(half %x)"),
    ("i16_f32", "i16", "float", "call float @__gnu_h2f_ieee(i16 %x)"),
    ("f32_i16", "float", "i16", "call i16 @__gnu_f2h_ieee(float %x)"),
)
DECLARATIONS = """
declare hidden half @__truncsfhf2(float)
declare hidden float @__extendhfsf2(half)
declare hidden float @__gnu_h2f_ieee(i16)
declare hidden i16 @__gnu_f2h_ieee(float)
"""
CHILD = """
import ctypes, mmap, sys
import numpy as np

code = open(sys.argv[1], "rb").read()
offsets = dict(item.split("=") for item in sys.argv[2:])
memory = mmap.mmap(-1, len(code), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
memory[:] = code
base = ctypes.addressof(ctypes.c_char.from_buffer(memory))


def function(name):
    kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    return kind(base + int(offsets[name]))


def convert(name, x, dtype):
    y = np.zeros(len(x), dtype)
    function(name)(x.ctypes.data, y.ctypes.data, len(x))
    return y


def memory_routines():
    rng = np.random.default_rng(0)
    move, copy = function("memmove"), function("memcpy")
    fill = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
    fill = fill(base + int(offsets["memset"]))
    sizes = [*range(0, 140), 255, 256, 257, 1000]
    for n in sizes:
        for shift in (-70, -33, -1, 0, 1, 7, 31, 64, 100):
            a = rng.integers(0, 256, 1400).astype(np.uint8)
            want = a.copy()
            want[150 + shift : 150 + shift + n] = a[150 : 150 + n]
            p = a.ctypes.data + 150
            assert move(p + shift, p, n) == p + shift
            assert np.array_equal(a, want), ("memmove", n, shift)
        a, b = rng.integers(0, 256, (2, n + 80)).astype(np.uint8)
        want = b.copy()
        want[40 : 40 + n] = a[3 : 3 + n]
        copy(b.ctypes.data + 40, a.ctypes.data + 3, n)
        assert np.array_equal(b, want), ("memcpy", n)
        want[5 : 5 + n] = 0xA7
        assert fill(b.ctypes.data + 5, 0x5A7, n) == b.ctypes.data + 5
        assert np.array_equal(b, want), ("memset", n)


def bits_agree(name, got, want):
    nan = np.isnan(want)
    assert np.array_equal(np.isnan(got), nan), name
    kind = f"u{want.dtype.itemsize}"
    assert np.array_equal(got.view(kind)[~nan], want.view(kind)[~nan]), name


def halves():
    h = np.arange(65536).astype(np.uint16).view(np.float16)
    wide = h.astype(np.float32)
    for name in ("f16_f32", "i16_f32"):
        bits_agree(name, convert(name, h, np.float32), wide)
    rng = np.random.default_rng(1)
    finite = np.unique(wide[np.isfinite(wide)])
    ties = (finite[1:] + finite[:-1]) / 2
    near = np.concatenate([np.nextafter(ties, s).astype(np.float32) for s in (-1e9, 1e9)])
    random = rng.integers(0, 2**32, 200000, np.uint32).view(np.float32)
    x = np.concatenate([wide, ties, near, random, np.array([65519.9, 65520.0], np.float32)])
    with np.errstate(all="ignore"):
        want = x.astype(np.float16)
        for name in ("f32_f16", "f32_i16"):
            bits_agree(name, convert(name, x, np.float16), want)
        fine = ties.astype(np.float64)
        d = [x.astype(np.float64), np.nextafter(fine, -1e9), np.nextafter(fine, 1e9)]
        d = np.concatenate([*d, np.array([1e300, -1e300, 5e-324, np.inf, -np.inf, np.nan])])
        bits_agree("f64_f16", convert("f64_f16", d, np.float16), d.astype(np.float16))


def bfloats():
    rng = np.random.default_rng(2)
    x = rng.integers(0, 2**32, 200000, np.uint32)
    x[:65536] = np.arange(65536, dtype=np.uint32) << 16 | 0x8000
    value = x.view(np.float32)
    got = convert("f32_bf16", value, np.uint16).astype(np.uint32) << 16
    want = (x + 0x7FFF + (x >> 16 & 1)) >> 16 << 16
    nan = np.isnan(value)
    assert np.array_equal(got[~nan], want[~nan]) and np.isnan(got.view(np.float32)[nan]).all()
    # a double just above a tie rounds up although its float is the tie
    tie = np.array([1 + 2**-8], np.float64)
    both = np.concatenate([np.nextafter(tie, 0), tie, np.nextafter(tie, 2)])
    assert convert("f64_bf16", both, np.uint16).tolist() == [0x3F80, 0x3F80, 0x3F81]


memory_routines()
halves()
bfloats()
print("right")
"""


def build(text: str, cpu: str) -> bytes:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(
        cpu=cpu, opt=2, reloc="pic", codemodel="small"
    )
    module = llvm.parse_assembly(text)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(module, builder)
    return bytes(machine.emit_object(module))


@pytest.mark.parametrize("cpu", ["x86-64-v2", "x86-64-v3"])
def test_routines_agree_with_numpy(cpu: str, tmp_path: Path) -> None:
    loops = [
        LOOP.format(name=name, source=source, result=result, convert=convert)
        for name, source, result, convert in LOOPS
    ]
    objects = [build(DECLARATIONS + "".join(loops), cpu), build(support_text(), cpu)]
    names = [name for name, *_ in LOOPS]
    image = link(objects, [*names, "memcpy", "memmove", "memset"])
    (tmp_path / "code").write_bytes(image.code)
    symbols = [f"{name}={offset}" for name, offset in image.symbols.items()]
    command = [sys.executable, "-c", CHILD, str(tmp_path / "code"), *symbols]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "right\n", done.stderr
