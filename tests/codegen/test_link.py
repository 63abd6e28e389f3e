"""The linker on small objects: layout, what it keeps, and everything it refuses."""

import struct

import llvmlite.binding as llvm
import pytest

from fissile.codegen.link import Image, link
from fissile.codegen.support import ENTRIES, support_text
from fissile.errors import CompileError

CALLER = """
@table = private constant [4 x float] [float 1.0, float 2.0, float 3.0, float 4.0]
declare hidden i64 @callee(i64)
define hidden float @caller(i64 %i) {
  %j = call i64 @callee(i64 %i)
  %p = getelementptr float, ptr @table, i64 %j
  %v = load float, ptr %p
  ret float %v
}
"""
CALLEE = "define hidden i64 @callee(i64 %i) {\n  %j = add i64 %i, 1\n  ret i64 %j\n}"


def build(text: str, features: str = "") -> bytes:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(
        cpu="x86-64-v3", features=features, opt=1, reloc="pic", codemodel="small"
    )
    return bytes(machine.emit_object(llvm.parse_assembly(text)))


def test_links_across_objects_deterministically() -> None:
    objects = [build(CALLER), build(CALLEE)]
    image = link(objects, ["caller"])
    assert list(image.symbols) == ["caller"]
    assert image == link(objects, ["caller"])
    assert len(image.code) % 64 == 0
    assert struct.pack("<4f", 1, 2, 3, 4) in image.code


def test_names_every_global_function_without_entries() -> None:
    assert set(link([build(CALLER), build(CALLEE)]).symbols) == {"caller", "callee"}


def test_drops_what_nobody_reaches() -> None:
    unused = "define hidden void @unused() {\n  call void @nowhere()\n  ret void\n}\n"
    objects = [build(CALLEE), build("declare hidden void @nowhere()\n" + unused)]
    assert set(link(objects, ["callee"]).symbols) == {"callee"}


def test_refuses_undefined_symbols_naming_all() -> None:
    text = """
    declare hidden void @one()
    declare hidden void @two()
    define hidden void @f() {
      call void @one()
      call void @two()
      ret void
    }"""
    with pytest.raises(CompileError) as caught:
        link([build(text)])
    assert caught.value.code == "F401"
    assert [place.node for place in caught.value.where] == ["one", "two"]


def test_refuses_missing_entries_and_double_definitions() -> None:
    with pytest.raises(CompileError, match="F401"):
        link([build(CALLEE)], ["elsewhere"])
    with pytest.raises(CompileError, match="defined twice"):
        link([build(CALLEE), build(CALLEE)])


@pytest.mark.parametrize(
    "text",
    [
        "@state = hidden global i64 7\ndefine hidden ptr @f() {\n  ret ptr @state\n}",
        "@state = common hidden global i64 0\ndefine hidden ptr @f() {\n  ret ptr @state\n}",
        "@p = hidden constant ptr @f\ndefine hidden ptr @f() {\n  ret ptr @p\n}",
    ],
)
def test_refuses_writable_data(text: str) -> None:
    with pytest.raises(CompileError, match="F402"):
        link([build(text)])


def test_refuses_a_global_offset_table() -> None:
    text = "@far = external global i64\ndefine hidden ptr @f() {\n  ret ptr @far\n}"
    with pytest.raises(CompileError, match="F40[13]"):
        link([build(text), build("@far = constant i64 3")])


def test_merges_functions_that_may_be_defined_often() -> None:
    text = """
    $shared = comdat any
    define linkonce_odr hidden i64 @shared() comdat { ret i64 5 }
    define hidden i64 @NAME() { %v = call i64 @shared() ret i64 %v }"""
    objects = [build(text.replace("NAME", name)) for name in ("a", "b")]
    assert set(link(objects).symbols) == {"a", "b", "shared"}


def test_refuses_what_is_no_object() -> None:
    for data in (b"", b"MZ" + bytes(100), build(CALLEE)[:300]):
        with pytest.raises(CompileError, match="F404"):
            link([data])


def test_support_module_stands_alone() -> None:
    image = link([build(support_text())], ENTRIES)
    assert isinstance(image, Image)
    assert set(image.symbols) == set(ENTRIES)
    assert len(image.code) < 16384
