"""The shape of the package itself: arrows, third parties, sizes, docstrings (DESIGN 2).

In: the sources as text. Out: a failure that names file and line. Invariant: a room imports only to
its left, a third-party package is known to the rooms listed here and to no other, nothing is
imported inside a function but where a command or a public name is loaded late.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "fissile"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# Left to right; rooms on one line do not order each other.
ORDER: tuple[tuple[str, ...], ...] = (
    ("child", "errors", "files", "target", "options"),
    ("reference",),
    ("ir",),
    ("frontend",),
    ("fission",),
    ("rewrite",),
    ("optimizer",),
    ("orchestrate",),
    ("microkernel",),
    ("schedule",),
    ("search",),
    ("codegen",),
    ("runtime",),
    ("report", "cache", "provider"),
    ("pipeline",),
    ("compiler",),
    ("tune",),
    ("compare",),
    ("ort", "demo", "console"),
    ("commands",),
    ("cli",),
    ("__init__", "__main__"),
)
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}

# Tighter than the order: what these rooms may import of the package at all.
ONLY: dict[str, tuple[str, ...]] = {
    "ir": ("fissile.errors", "fissile.ir"),
    "microkernel": ("fissile.errors", "fissile.target", "fissile.ir", "fissile.microkernel"),
    "runtime": (
        "fissile.child",
        "fissile.errors",
        "fissile.files",
        "fissile.target",
        "fissile.options",
        "fissile.ir.dtype",
        "fissile.ir.intern",
        "fissile.reference",
        "fissile.runtime",
    ),
}

# Rooms that may import a third-party package. numpy is everybody's.
THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "torch": ("compare/torch_module.py",),
    "onnx": (
        "reference", "frontend", "fission", "optimizer", "demo", "pipeline", "compiler", "compare",
        "provider",
    ),
    "google": ("frontend",),
    "llvmlite": ("codegen",),
    "highspy": ("orchestrate",),
    "click": ("cli", "commands", "console"),
    "rich": ("cli", "report"),
    "platformdirs": ("cache", "runtime/store"),
    "ml_dtypes": ("ir", "frontend", "fission", "runtime"),
    "onnxruntime": ("demo", "cli"),
}
# Where an import may stand inside a function: commands and names that are loaded on first use.
LATE = ("__init__.py", "cli.py", "commands/", "ort/", "demo/", "runtime/foreign.py")

MAX_FUNCTION = 60
MAX_FILE = 600
LONG_TABLES = {"ir/primitive.py": 800}  # one table, read top to bottom


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def _room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute module) of every import, those under TYPE_CHECKING included."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{_name(path)}:{node.lineno}: relative import"
            module = node.module or ""
            if module in ("fissile", "fissile.ir", "fissile.runtime", "fissile.codegen"):
                yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, module


def _module_room(module: str) -> str:
    room = module.split(".")[1] if "." in module else "__init__"
    return room if room in RANK else "__init__"


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_imports_point_left(path: Path) -> None:
    room = _room(path)
    assert room in RANK, f"{_name(path)} belongs to no room of the design"
    for line, module in _imports(path):
        if module.split(".")[0] != "fissile" or room == "__init__":
            continue
        place = f"{_name(path)}:{line} imports {module}"
        other = _module_room(module)
        # the public face is for those who only use the compiler; the version for everybody
        if other == "__init__":
            assert module == "fissile.__version__" or room in ("ort", "demo", "cli", "console"), place
            continue
        assert other == room or RANK[other] < RANK[room] or room in ORDER[0], place
        allowed = ONLY.get(room)
        assert allowed is None or module.startswith(allowed), f"{place}; {room} may not"


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_third_parties_have_their_rooms(path: Path) -> None:
    name = _name(path)
    for line, module in _imports(path):
        top = module.split(".")[0]
        if top in sys.stdlib_module_names or top in ("fissile", "numpy"):
            continue
        rooms = THIRD_PARTY.get(top, ())
        assert name.startswith(rooms), f"{name}:{line} imports {module}"


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_no_import_inside_functions(path: Path) -> None:
    name = _name(path)
    if name.startswith(LATE):
        return
    for function in ast.walk(_tree(path)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                assert not isinstance(node, ast.Import | ast.ImportFrom), f"{name}:{node.lineno}"


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_functions_and_files_are_short(path: Path) -> None:
    name = _name(path)
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LONG_TABLES.get(name, MAX_FILE), f"{name} has {lines} lines"
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= MAX_FUNCTION, f"{name}:{node.lineno} {node.name} has {length} lines"


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_every_module_says_what_it_is(path: Path) -> None:
    text = ast.get_docstring(_tree(path)) or ""
    assert text, f"{_name(path)} has no docstring"
    assert len(text.splitlines()) <= 12, f"{_name(path)}: a module docstring is 3 to 8 lines"


def test_only_options_reads_the_environment() -> None:
    readers = [
        f"{_name(path)}:{node.lineno}"
        for path in SOURCES
        if _name(path) not in ("options.py", "cli.py", "console.py")
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    ]
    # a child process inherits a changed copy, which is not a knob
    assert [r for r in readers if not r.startswith(("codegen/", "runtime/measure"))] == []


def test_nothing_is_pickled_or_evaluated() -> None:
    banned = {"eval", "exec", "pickle", "dill", "marshal", "shelve"}
    for path in SOURCES:
        for line, module in _imports(path):
            assert module.split(".")[0] not in banned, f"{_name(path)}:{line} imports {module}"
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in banned, f"{_name(path)}:{node.lineno} {node.func.id}"
