"""Small equal expressions, found by enumeration: which of them the rewrite rules know, and which they do not.

    python bench/enumerate.py [--primitives 3] [--sample 1500] [--list 40]

All expressions of at most so many primitives over a few typed operands are evaluated on random numbers, and in a
finite field where they are rational; equal fingerprints are checked on drawn values at other shapes (extents 0 and 1
among them). A pair is subsumed when canonicalization and at most two firings on either side lead to one graph.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from fissile.ir.dtype import FLOAT64
from fissile.ir.graph import Graph, Node, evaluate, make
from fissile.ir.graph import data as as_data
from fissile.ir.primitive import PRIMITIVES, constant, constant_value, scalar
from fissile.rewrite import RULES, canonicalize, estimator
from fissile.rewrite.engine import Renewal
from fissile.rewrite.rule import enabled
from fissile.rewrite.substitute import sites

UNKNOWN = "known to no rule"
LARGER = 3  # primitives of a side of which a sample is judged
PRIME = 2**31 - 1
SIZES = {"m": 3, "k": 5, "n": 2, "p": 4}
# Drawn for the check: distinct, with a 1, with a 0, and one where other sides are long.
OTHERS = ({"m": 4, "k": 3, "n": 7, "p": 2}, {"m": 1, "k": 6, "n": 2, "p": 3},
          {"m": 5, "k": 1, "n": 3, "p": 1}, {"m": 0, "k": 4, "n": 1, "p": 5})  # fmt: skip
LARGE = ({"m": 4096, "k": 64, "n": 128, "p": 32}, {"m": 32, "k": 512, "n": 64, "p": 1024})
LEAVES = {"x": "mk", "y": "mk", "w": "kn", "v": "kn", "u": "np", "r": "1k", "c": "m1"}
WEIGHTS = ("w", "v", "u")
EARLIER = {"y": "x", "v": "w"}  # names of one type are used in order
FACTOR = 3  # what a tensor is scaled by: rational, and no power of two
ORDERLESS = ("add", "mul", "max", "min")  # order and grouping of their operands is no difference

Array = Any


@dataclass(frozen=True)
class Op:
    """A primitive as it is enumerated: its value in numpy, in the field (None: it has none), and as nodes."""

    name: str
    arity: int
    real: Callable[..., Array]
    modular: Callable[..., Array] | None
    build: Callable[..., Node]


@dataclass(frozen=True)
class Term:
    """An expression: a leaf (no arguments) or an operator over terms. Equal terms are equal."""

    op: str
    args: tuple[Term, ...] = ()

    @property
    def size(self) -> int:
        """Primitives, shared ones counted once."""
        return len(_inner(self))

    def __str__(self) -> str:
        return f"{self.op}({', '.join(map(str, self.args))})" if self.args else self.op


@cache
def _inner(term: Term) -> frozenset[Term]:
    below = frozenset[Term]().union(*map(_inner, term.args))
    return below | {term} if term.args else below


@cache
def leaves(term: Term) -> frozenset[str]:
    """The names a term reads."""
    return frozenset[str]().union(*map(leaves, term.args)) if term.args else frozenset({term.op})


# ---------------------------------------------------------------- operators


def _p(primitive: str, /, *inputs: Node, **attrs: Any) -> Node:
    return make(PRIMITIVES[primitive], *inputs, **attrs)


def _fitted(a: Node, b: Node) -> tuple[Node, Node]:
    shape = np.broadcast_shapes(a.shape, b.shape)  # type: ignore[arg-type]
    made = [x if x.shape == shape else _p("broadcast", x, shape=tuple(shape)) for x in (a, b)]
    return made[0], made[1]


def _uniform(value: float, like: Node) -> Node:
    return _p("broadcast", scalar(value, FLOAT64), shape=like.shape)


def _kept(x: Node, axis: int) -> tuple[Any, ...]:
    return tuple(1 if a == axis else d for a, d in enumerate(x.shape))


def _reduced(name: str, axis: int) -> Callable[[Node], Node]:
    return lambda x: _p("reshape", _p(name, x, axes=(axis,)), shape=_kept(x, axis))


def _cut(axis: int, first: bool) -> Callable[[Node], Node]:
    def build(x: Node) -> Node:
        shape, starts = list(x.shape), [0, 0]
        shape[axis] = 1 if first else x.shape[axis] - 1  # type: ignore[operator]
        starts[axis] = 0 if first else 1
        if x.shape[axis] == 0:
            raise ValueError("nothing to cut")
        return _p("slice", x, starts=tuple(starts), steps=(1, 1), shape=tuple(shape))

    return build


def _bordered(axis: int) -> Callable[[Node], Node]:
    high = tuple(int(a == axis) for a in range(2))
    return lambda x: _p("pad", x, low=(0, 0), high=high, value=as_data(np.array(0.0)))


def _doubled(axis: int) -> Callable[[Node], Node]:
    return lambda x: _p("gather", x, constant(np.arange(2 * int(x.shape[axis])) // 2), axis=axis)  # type: ignore[arg-type]


def _elementwise(name: str) -> Callable[[Node, Node], Node]:
    return lambda a, b: _p(name, *_fitted(a, b))


def _operators() -> list[Op]:
    found = [
        Op("neg", 1, np.negative, lambda x: -x % PRIME, lambda x: _p("neg", x)),
        Op("exp", 1, np.exp, None, lambda x: _p("exp", x)),
        Op("relu", 1, lambda x: np.maximum(x, 0), None, lambda x: _p("max", x, _uniform(0, x))),
        Op("triple", 1, lambda x: x * FACTOR, lambda x: x * FACTOR % PRIME,
           lambda x: _p("mul", x, _uniform(FACTOR, x))),
        Op("t", 1, np.transpose, np.transpose, lambda x: _p("transpose", x, perm=(1, 0))),
        Op("add", 2, np.add, lambda a, b: (a + b) % PRIME, _elementwise("add")),
        Op("sub", 2, np.subtract, lambda a, b: (a - b) % PRIME, _elementwise("sub")),
        Op("mul", 2, np.multiply, lambda a, b: a * b % PRIME, _elementwise("mul")),
        Op("div", 2, np.divide, lambda a, b: a * _inverse(b) % PRIME, _elementwise("div")),
        Op("max", 2, np.maximum, None, _elementwise("max")),
        Op("dot", 2, np.matmul, _modular_dot, lambda a, b: _p("matmul", a, b)),
    ]  # fmt: skip
    for axis in range(2):
        found += [
            Op(f"sum{axis}", 1, lambda x, a=axis: x.sum(a, keepdims=True),
               lambda x, a=axis: x.sum(a, keepdims=True) % PRIME, _reduced("reduce_sum", axis)),
            Op(f"top{axis}", 1, lambda x, a=axis: x.max(a, keepdims=True), None,
               _reduced("reduce_max", axis)),
            Op(f"first{axis}", 1, *_both(lambda x, a=axis: np.take(x, [0], a)), _cut(axis, True)),
            Op(f"rest{axis}", 1, *_both(lambda x, a=axis: np.delete(x, 0, a)), _cut(axis, False)),
            Op(f"pad{axis}", 1, *_both(lambda x, a=axis: np.pad(x, [(0, int(a == i)) for i in range(2)])),
               _bordered(axis)),
            Op(f"twice{axis}", 1, *_both(lambda x, a=axis: np.repeat(x, 2, a)), _doubled(axis)),
            Op(f"join{axis}", 2, *_both(lambda x, y, a=axis: np.concatenate([x, y], a)),
               lambda x, y, a=axis: _p("concat", x, y, axis=a)),
        ]  # fmt: skip
    return found


def _both(move: Callable[..., Array]) -> tuple[Callable[..., Array], Callable[..., Array]]:
    return move, move


def _modular_dot(a: Array, b: Array) -> Array:
    total = np.zeros((a.shape[0], b.shape[1]), np.int64)
    for k in range(a.shape[1]):
        total = (total + a[:, k : k + 1] * b[k : k + 1] % PRIME) % PRIME
    return total


def _inverse(x: Array) -> Array:
    result, base, left = np.ones_like(x), x, PRIME - 2
    while left:
        result, base, left = (
            (result * base % PRIME if left & 1 else result),
            base * base % PRIME,
            left >> 1,
        )
    return result


OPS = {op.name: op for op in _operators()}


# ---------------------------------------------------------------- enumeration


@dataclass
class Pool:
    """Terms by their values: the first (smallest) of each value, and every other equal to it.

    by_size: the representatives, from which larger terms are made.
    """

    reals: dict[str, Array]
    fields: dict[str, Array]
    by_size: list[list[Term]] = field(default_factory=list)
    first: dict[Any, Term] = field(default_factory=dict)
    real: dict[Term, Array] = field(default_factory=dict)
    modular: dict[Term, Array | None] = field(default_factory=dict)
    pairs: list[tuple[Term, Term]] = field(default_factory=list)
    number: dict[Term, int] = field(default_factory=dict)
    names: dict[Term, frozenset[str]] = field(default_factory=dict)
    tried: int = 0

    def keep(self, term: Term, real: Array, modular: Array | None) -> None:
        """Remember a term that stands for its value."""
        self.real[term], self.modular[term] = real, modular
        self.number[term] = len(self.number)
        self.names[term] = leaves(term)


def drawn(sizes: dict[str, int], seed: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Random numbers for every leaf, and random elements of the field."""
    rng = np.random.default_rng(seed)
    shapes = {name: tuple(sizes.get(d, 1) for d in dims) for name, dims in LEAVES.items()}
    return (
        {n: rng.uniform(0.3, 1.7, s) * rng.choice((-1, 1), s) for n, s in shapes.items()},
        {n: rng.integers(1, PRIME, s) for n, s in shapes.items()},
    )


def enumerated(primitives: int) -> Pool:
    """All terms of at most so many primitives, by value."""
    pool = Pool(*drawn(SIZES, 0))
    names = [Term(name) for name in LEAVES]
    for leaf in names:
        pool.keep(leaf, pool.reals[leaf.op], pool.fields[leaf.op])
        pool.first[_print(pool.real[leaf])] = leaf
    pool.by_size.append(names)
    for size in range(1, primitives + 1):
        fresh: list[Term] = []
        pool.by_size.append(fresh)
        for op, args in _candidates(pool, size):
            _consider(pool, op, args, size == primitives, fresh)
    return pool


def _candidates(pool: Pool, size: int) -> Iterator[tuple[Op, tuple[Term, ...]]]:
    with np.errstate(all="ignore"):
        for op in OPS.values():
            if op.arity == 1:
                yield from ((op, (a,)) for a in pool.by_size[size - 1])
                continue
            for left in range(size):
                for a in pool.by_size[left]:
                    yield from ((op, (a, b)) for b in pool.by_size[size - 1 - left])
                    if left == size - 1 and left:
                        yield op, (a, a)


def _is_named_in_order(names: frozenset[str]) -> bool:
    return all(before in names for late, before in EARLIER.items() if late in names)


def _consider(pool: Pool, op: Op, args: tuple[Term, ...], is_last: bool, fresh: list[Term]) -> None:
    values = [pool.real[a] for a in args]
    if not _fits(op.name, values):
        return
    names = frozenset[str]().union(*(pool.names[a] for a in args))
    if not _is_named_in_order(names):
        return
    if op.name in ORDERLESS and pool.number[args[0]] > pool.number[args[1]]:
        return
    if op.name in ("sub", "div") and args[0] is args[1]:
        return  # a constant in disguise
    pool.tried += 1
    value = op.real(*values)
    if not np.all(np.isfinite(value)) or value.size == 0:
        return
    term = Term(op.name, args)
    key = _print(value)
    known = pool.first.get(key)
    if known is None:
        pool.first[key] = term
    elif _is_equal_in_field(pool, op, args, known):
        pool.pairs.append((known, term))
        return
    if not is_last:
        pool.keep(term, value, _in_field(pool, op, args))
        fresh.append(term)


def _fits(name: str, values: Sequence[Array]) -> bool:
    if len(values) == 1:
        return not (
            name.startswith(("rest", "first", "top", "sum")) and values[0].shape[int(name[-1])] < 2
        )
    a, b = values
    if name == "dot":
        return bool(a.shape[1] == b.shape[0] and a.shape[1] > 1)
    if name.startswith("join"):
        return bool(a.shape[1 - int(name[-1])] == b.shape[1 - int(name[-1])])
    return all(p == q or 1 in (p, q) for p, q in zip(a.shape, b.shape, strict=True))


def _print(value: Array) -> Any:
    """Shape and values to nine digits."""
    scale = 10.0 ** (9 - np.ceil(np.log10(np.abs(value).max() + 1e-300)))
    return value.shape, np.round(value * scale).tobytes()


def _in_field(pool: Pool, op: Op, args: tuple[Term, ...]) -> Array | None:
    values = [pool.modular[a] for a in args]
    if op.modular is None or any(v is None for v in values):
        return None
    return op.modular(*values)


def _is_equal_in_field(pool: Pool, op: Op, args: tuple[Term, ...], known: Term) -> bool:
    """Whether the field, where both have values in it, says so too."""
    mine, other = _in_field(pool, op, args), pool.modular.get(known)
    return mine is None or other is None or np.array_equal(mine, other)


# ---------------------------------------------------------------- checks


def built(term: Term, sizes: dict[str, int], constants: bool = False) -> Graph:
    """The term as a graph; weights as inputs or as constants. ValueError where a shape does not fit."""
    made: dict[Term, Node] = {}
    reals, _ = drawn(sizes, 1)

    def node(t: Term) -> Node:
        if t not in made:
            if t.args:
                made[t] = OPS[t.op].build(*map(node, t.args))
            elif constants and t.op in WEIGHTS:
                made[t] = constant(reals[t.op])
            else:
                made[t] = _p("input", name=t.op, dtype="float64", shape=reals[t.op].shape)
        return made[t]

    root = node(term)
    inputs = tuple(n for t, n in made.items() if not t.args and n.name == "input")
    return Graph(inputs, (("y", root),))


def is_confirmed(a: Term, b: Term) -> bool:
    """Whether both have equal types and values at all other sizes where both exist, and at one at least."""
    checked = 0
    for seed, sizes in enumerate(OTHERS, start=2):
        try:
            pair = [built(t, sizes) for t in (a, b)]
        except ValueError:
            continue
        feeds, _ = drawn(sizes, seed)
        with np.errstate(all="ignore"):
            p, q = (evaluate(g, feeds, {})["y"] for g in pair)
        if p.shape != q.shape or not np.allclose(p, q, rtol=1e-9, atol=1e-12, equal_nan=True):
            return False
        checked += 1
    return checked > 0


@dataclass
class Keys:
    """Numbers of nodes that are equal but for the order of terms and factors and the last digits of constants."""

    numbers: dict[Any, int] = field(default_factory=dict)
    of: dict[Node, int] = field(default_factory=dict)

    def key(self, node: Node) -> int:
        """The number of a node."""
        if node not in self.of:
            self.of[node] = self.numbers.setdefault(self._said(node), len(self.numbers))
        return self.of[node]

    def _said(self, node: Node) -> Any:
        value = constant_value(node)
        if value is not None:
            return "constant", value.shape, tuple(np.round(value.astype(float), 9).ravel())
        if node.name in ORDERLESS:
            return node.name, tuple(sorted(self._flat(node, node.name)))
        return node.primitive, node.attrs, tuple(map(self.key, node.inputs))

    def _flat(self, node: Node, name: str) -> Iterator[int]:
        for i in node.inputs:
            yield from self._flat(i, name) if i.name == name else (self.key(i),)


@dataclass
class Judge:
    """Says what the rules make of terms, and remembers it."""

    rules: tuple[Any, ...] = field(default_factory=lambda: enabled("substitute"))
    renewal: Renewal = field(default_factory=lambda: Renewal(enabled("canonicalize")))
    keys: Keys = field(default_factory=Keys)
    reached: dict[Any, list[dict[Any, Graph]]] = field(default_factory=dict)

    def steps(self, term: Term, constants: bool, depth: int) -> set[Any]:
        """Keys of all graphs within so many firings."""
        known = self.reached.setdefault((term, constants), [])
        if not known:
            start = canonicalize(built(term, SIZES, constants)).graph
            known.append({self._key(start): start})
        while len(known) <= depth:
            known.append(self._fired(known))
        return {k for level in known[: depth + 1] for k in level}

    def _fired(self, known: list[dict[Any, Graph]]) -> dict[Any, Graph]:
        fresh: dict[Any, Graph] = {}
        for graph in known[-1].values():
            for site in sites(graph, self.rules, None):
                after = self.renewal.exchanged(graph, dict(zip(site.nodes, site.new, strict=True)))
                key = self._key(after)
                if not any(key in level for level in (*known, fresh)):
                    fresh[key] = after
        return fresh

    def _key(self, graph: Graph) -> int:
        return self.keys.key(graph.outputs[0][1])

    def verdict(self, a: Term, b: Term) -> str:
        """By how much effort one is found from the other."""
        for constants in (False, True):
            if constants and not any(n in WEIGHTS for n in leaves(a) | leaves(b)):
                break
            for depth, said in ((0, "canonical"), (1, "one firing"), (2, "two firings")):
                if self.steps(a, constants, depth) & self.steps(b, constants, depth):
                    return f"{said}, constant weights" if constants else said
        return UNKNOWN


def gain(a: Term, b: Term) -> float:
    """How many times cheaper the cheaper one is, by the estimate, at the larger of two typical sizes."""
    cost = estimator()
    best = 1.0
    for sizes in LARGE:
        try:
            p, q = (cost(canonicalize(built(t, sizes)).graph) for t in (a, b))
        except ValueError:
            continue
        best = max(best, p / q if q else 1, q / p if p else 1)
    return best


@dataclass(frozen=True)
class Finding:
    """Two equal expressions, how the rules know it, and what the difference is worth."""

    left: Term
    right: Term
    verdict: str
    gain: float


def findings(primitives: int, sample: int) -> tuple[Pool, list[Finding]]:
    """The confirmed among all pairs of at most two primitives a side, and `sample` drawn ones of the larger."""
    pool = enumerated(primitives)
    judge = Judge()
    small = [p for p in pool.pairs if max(t.size for t in p) < LARGER]
    large = [p for p in pool.pairs if max(t.size for t in p) >= LARGER]
    chosen = np.random.default_rng(0).permutation(len(large))[:sample]
    found = []
    for a, b in (*small, *(large[k] for k in sorted(chosen))):
        if is_confirmed(a, b):
            said = judge.verdict(a, b)
            found.append(Finding(a, b, said, gain(a, b) if said == UNKNOWN else 1.0))
    return pool, found


def pattern(finding: Finding) -> str:
    """A finding without the names of its operands and axes."""
    pair = (re.sub(r"\b[a-z]\b|\d", "", str(t)) for t in (finding.left, finding.right))
    return "  =  ".join(sorted(pair, key=lambda t: (len(t), t)))


def patterns(found: Sequence[Finding]) -> list[tuple[float, int, str, Finding]]:
    """What the rules do not know: per pattern the largest gain, how often it was found, and where that gain is."""
    groups: dict[str, list[Finding]] = {}
    for finding in found:
        if finding.verdict == UNKNOWN:
            groups.setdefault(pattern(finding), []).append(finding)
    best = ((max(g, key=lambda f: f.gain), len(g), name) for name, g in groups.items())
    return sorted(((f.gain, n, name, f) for f, n, name in best), key=lambda row: (-row[0], row[2]))


def main() -> None:
    """Enumerate, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--primitives", type=int, default=3)
    parser.add_argument("--sample", type=int, default=1500, help="pairs of 3 primitives judged")
    parser.add_argument("--list", type=int, default=40, help="patterns printed")
    args = parser.parse_args()
    start = time.perf_counter()
    pool, found = findings(args.primitives, args.sample)
    rest = patterns(found)
    counts = Counter(f.verdict for f in found)
    print(
        f"{pool.tried} expressions, {len(pool.first)} values, {len(pool.pairs)} equalities; "
        f"{len(found)} judged and confirmed, {len(RULES)} rules, {time.perf_counter() - start:.0f} s"
    )
    for said, n in counts.most_common():
        print(f"  {n:6d} {said}")
    print(f"{len(rest)} patterns that no rule knows, by what the cheaper side gains:")
    for most, n, _, finding in rest[: args.list]:
        print(f"  {most:6.2f}x {n:4d}  {finding.left}  =  {finding.right}")


if __name__ == "__main__":
    main()
