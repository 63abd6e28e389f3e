"""Link relocatable objects into one flat image (DESIGN 3.8).

In: ELF64 x86-64 objects as bytes, and the entries that must be reachable. Out: an `Image`: code and
constants in one position-independent blob, and the offset of every entry. Sections nobody reaches
are dropped, as are unwind tables and notes. Invariant: no undefined symbol, no writable data, no
absolute address, hence nothing to do at load; equal objects in equal order give equal bytes.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fissile.errors import CompileError

ALIGNMENT = 64
MACHINE_X86_64 = 62
RELOCATABLE = 1
SHT_PROGBITS, SHT_SYMTAB, SHT_RELA, SHT_NOBITS, SHT_GROUP = 1, 2, 4, 8, 17
SHT_X86_64_UNWIND = 0x70000001
SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR, SHF_TLS = 0x1, 0x2, 0x4, 0x400
SHN_UNDEF, SHN_ABS, SHN_COMMON = 0, 0xFFF1, 0xFFF2
STB_LOCAL, STB_GLOBAL, STB_WEAK = 0, 1, 2
STT_FUNC, STT_SECTION = 2, 3
PC_RELATIVE_32 = (2, 4)  # R_X86_64_PC32, R_X86_64_PLT32
PC_RELATIVE_64 = 24
RELOCATION_NAMES = {
    1: "R_X86_64_64",
    9: "R_X86_64_GOTPCREL",
    10: "R_X86_64_32",
    11: "R_X86_64_32S",
    41: "R_X86_64_GOTPCRELX",
    42: "R_X86_64_REX_GOTPCRELX",
}


@dataclass(frozen=True)
class Image:
    """A flat blob (to be put on a 64-byte boundary) and the byte offset of each entry in it."""

    code: bytes
    symbols: dict[str, int]


@dataclass(frozen=True)
class Symbol:
    """One line of a symbol table; section 0 = undefined."""

    name: str
    binding: int
    kind: int
    section: int
    value: int


@dataclass(frozen=True)
class Relocation:
    """At `offset` of its section goes symbol + addend, in the manner of `kind`."""

    offset: int
    kind: int
    symbol: int
    addend: int


@dataclass(frozen=True)
class Section:
    """A section that ends up in memory."""

    name: str
    data: bytes
    alignment: int
    is_code: bool
    relocations: tuple[Relocation, ...]


@dataclass(frozen=True)
class Object:
    """What the linker needs of one ELF file; sections by their ELF index."""

    sections: Mapping[int, Section]
    symbols: tuple[Symbol, ...]
    groups: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Header:
    """An ELF section header, with its name resolved."""

    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int


Key = tuple[int, int]  # (object, section)
Definition = tuple[int, int, int]  # (object, section, value)


def link(objects: Sequence[bytes], entries: Sequence[str] | None = None) -> Image:
    """Lay out and resolve; `entries` (default: every global function) are kept and named.

    CompileError F401 for an undefined or doubly defined symbol, F402 for writable data, F403 for an
    address that could not be position independent, F404 for a file that is no x86-64 object.
    """
    parsed = [parse_object(data) for data in objects]
    discarded = _discarded_sections(parsed)
    globals_ = _global_definitions(parsed, discarded)
    names = sorted(_functions(parsed, globals_)) if entries is None else list(entries)
    missing = [name for name in names if name not in globals_]
    if missing:
        raise _undefined(missing)
    kept = _reachable(parsed, globals_, [globals_[name][:2] for name in names])
    places, size = _layout(parsed, kept)
    code = bytearray(size)
    for (index, number), place in places.items():
        section = parsed[index].sections[number]
        code[place : place + len(section.data)] = section.data
        if section.is_code:
            _fill_gap(code, place + len(section.data))
    for key in places:
        _relocate(code, parsed, globals_, places, key)
    symbols = {name: places[globals_[name][:2]] + globals_[name][2] for name in names}
    return Image(bytes(code), symbols)


def parse_object(data: bytes) -> Object:
    """Read one ELF64 little-endian x86-64 relocatable file."""
    try:
        headers = _headers(data)
        symbols = _symbols(data, headers)
        sections = _sections(data, headers)
        return Object(sections, symbols, _groups(data, headers, symbols))
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise CompileError("F404", "an object file is damaged", reason=str(error)) from error


def _headers(data: bytes) -> list[Header]:
    kind, machine = struct.unpack_from("<HH", data, 16) if len(data) >= 64 else (0, 0)
    if data[:6] != b"\x7fELF\x02\x01" or kind != RELOCATABLE or machine != MACHINE_X86_64:
        raise CompileError(
            "F404",
            "not an x86-64 object file",
            reason=f"the linker got {len(data)} bytes that start with {data[:8]!r}",
        )
    (start,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    raw = [struct.unpack_from("<IIQQQQIIQQ", data, start + i * size) for i in range(count)]
    strings = raw[names][4]
    return [
        Header(_string(data, strings + h[0]), h[1], h[2], h[4], h[5], h[6], h[7], max(h[8], 1))
        for h in raw
    ]


def _string(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()


def _symbols(data: bytes, headers: Sequence[Header]) -> tuple[Symbol, ...]:
    found = []
    for table in (h for h in headers if h.kind == SHT_SYMTAB):
        strings = headers[table.link].offset
        for at in range(table.offset, table.offset + table.size, 24):
            name, info, _, section, value, _ = struct.unpack_from("<IBBHQQ", data, at)
            found.append(
                Symbol(_string(data, strings + name), info >> 4, info & 15, section, value)
            )
    return tuple(found)


def _sections(data: bytes, headers: Sequence[Header]) -> dict[int, Section]:
    relocations: dict[int, tuple[Relocation, ...]] = {}
    for table in (h for h in headers if h.kind == SHT_RELA):
        rows = struct.iter_unpack("<QQq", data[table.offset : table.offset + table.size])
        relocations[table.info] = tuple(
            Relocation(offset, info & 0xFFFFFFFF, info >> 32, addend)
            for offset, info, addend in rows
        )
    sections = {}
    for number, h in enumerate(headers):
        if not h.flags & SHF_ALLOC or _is_unwind(h):
            continue
        if h.flags & (SHF_WRITE | SHF_TLS):
            if h.size:
                raise _writable(h.name)
            continue
        body = bytes(h.size) if h.kind == SHT_NOBITS else data[h.offset : h.offset + h.size]
        is_code = bool(h.flags & SHF_EXECINSTR)
        rows_here = relocations.get(number, ())
        sections[number] = Section(h.name, body, h.alignment, is_code, rows_here)
    return sections


def _is_unwind(header: Header) -> bool:
    return header.kind == SHT_X86_64_UNWIND or header.name.startswith((".eh_frame", ".note"))


def _writable(what: str) -> CompileError:
    return CompileError(
        "F402",
        "generated code has writable data",
        where=what,
        reason="an image is shared and mapped read-only; state belongs into the context block",
    )


def _groups(
    data: bytes, headers: Sequence[Header], symbols: Sequence[Symbol]
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    groups = []
    for h in (h for h in headers if h.kind == SHT_GROUP):
        words = struct.unpack_from(f"<{h.size // 4}I", data, h.offset)
        groups.append((symbols[h.info].name, words[1:]))
    return tuple(groups)


def _discarded_sections(objects: Sequence[Object]) -> frozenset[Key]:
    """Of several COMDAT groups of one name, all but the first."""
    seen: set[str] = set()
    discarded: set[Key] = set()
    for index, item in enumerate(objects):
        for name, members in item.groups:
            if name in seen:
                discarded.update((index, member) for member in members)
            seen.add(name)
    return frozenset(discarded)


def _global_definitions(
    objects: Sequence[Object], discarded: frozenset[Key]
) -> dict[str, Definition]:
    """Name -> definition; a strong one replaces a weak one, two strong ones are an error."""
    found: dict[str, Definition] = {}
    strong: set[str] = set()
    for index, item in enumerate(objects):
        for symbol in item.symbols:
            if symbol.section == SHN_COMMON:
                raise _writable(symbol.name)
            key = (index, symbol.section)
            if symbol.binding == STB_LOCAL or symbol.section == SHN_UNDEF or key in discarded:
                continue
            is_strong = symbol.binding == STB_GLOBAL
            if is_strong and symbol.name in strong:
                raise CompileError("F401", "a symbol is defined twice", where=symbol.name)
            if is_strong or symbol.name not in found:
                found[symbol.name] = (index, symbol.section, symbol.value)
            if is_strong:
                strong.add(symbol.name)
    return found


def _functions(objects: Sequence[Object], globals_: Mapping[str, Definition]) -> Iterable[str]:
    for item in objects:
        for symbol in item.symbols:
            is_global = symbol.binding != STB_LOCAL and symbol.name in globals_
            if is_global and symbol.kind == STT_FUNC:
                yield symbol.name


def _undefined(names: Iterable[str]) -> CompileError:
    return CompileError(
        "F401",
        "generated code calls functions that nobody defines",
        where=sorted(set(names)),
        reason="an image contains everything it calls; LLVM turned an instruction into a call",
    )


def _resolve(
    objects: Sequence[Object], globals_: Mapping[str, Definition], index: int, number: int
) -> Definition:
    symbol = objects[index].symbols[number]
    if symbol.section == SHN_ABS:
        raise _unsupported(f"absolute symbol {symbol.name}")
    if symbol.binding == STB_LOCAL and symbol.section != SHN_UNDEF:
        return index, symbol.section, symbol.value
    if symbol.name not in globals_:
        raise _undefined([symbol.name])
    return globals_[symbol.name]


def _reachable(
    objects: Sequence[Object], globals_: Mapping[str, Definition], roots: Iterable[Key]
) -> frozenset[Key]:
    """Sections reached from the roots; all undefined symbols on the way in one error."""
    kept: set[Key] = set()
    work = list(roots)
    missing: set[str] = set()
    while work:
        index, number = key = work.pop()
        if key in kept:
            continue
        kept.add(key)
        for row in objects[index].sections[number].relocations:
            symbol = objects[index].symbols[row.symbol]
            if symbol.section == SHN_UNDEF and symbol.name not in globals_:
                missing.add(symbol.name)
                continue
            target = _resolve(objects, globals_, index, row.symbol)[:2]
            if target[1] not in objects[target[0]].sections:
                raise _unsupported(f"reference to {symbol.name or 'a dropped section'}")
            work.append(target)
    if missing:
        raise _undefined(missing)
    return frozenset(kept)


def _layout(objects: Sequence[Object], kept: frozenset[Key]) -> tuple[dict[Key, int], int]:
    """Code first, then constants on lines of their own, each in the order given."""
    places: dict[Key, int] = {}
    end = 0
    for wants_code in (True, False):
        end = -(-end // ALIGNMENT) * ALIGNMENT
        for key in sorted(kept):
            section = objects[key[0]].sections[key[1]]
            if section.is_code == wants_code:
                places[key] = -(-end // section.alignment) * section.alignment
                end = places[key] + len(section.data)
    return places, -(-end // ALIGNMENT) * ALIGNMENT


def _fill_gap(code: bytearray, start: int) -> None:
    """Trap instructions up to the next line: what lies between functions is never run."""
    end = min(-(-start // 16) * 16, len(code))
    code[start:end] = b"\xcc" * (end - start)


def _relocate(
    code: bytearray,
    objects: Sequence[Object],
    globals_: Mapping[str, Definition],
    places: Mapping[Key, int],
    key: Key,
) -> None:
    for row in objects[key[0]].sections[key[1]].relocations:
        index, number, value = _resolve(objects, globals_, key[0], row.symbol)
        at = places[key] + row.offset
        target = places[index, number] + value + row.addend - at
        if row.kind in PC_RELATIVE_32:
            struct.pack_into("<i", code, at, target)
        elif row.kind == PC_RELATIVE_64:
            struct.pack_into("<q", code, at, target)
        else:
            name = objects[key[0]].symbols[row.symbol].name
            kind = RELOCATION_NAMES.get(row.kind, f"relocation {row.kind}")
            raise _unsupported(f"{kind} to {name or 'a constant'}")


def _unsupported(what: str) -> CompileError:
    return CompileError(
        "F403",
        "generated code is not position independent",
        where=what,
        reason="only distances inside the image may be relocated: declare it hidden",
    )
