"""Operations of drawn ONNX models that move elements: layouts and indices. As in `tests.e2e.model_numbers`."""

from __future__ import annotations

import numpy as np

from tests.e2e.model_numbers import an_axis, signed, together
from tests.e2e.model_pool import LONGEST, Extent, Pool, Unfit, Value

# ---------------------------------------------------------------- layout


def transpose(p: Pool) -> object:
    v = p.some(lambda v: v.rank > 1)
    order = [int(a) for a in p.rng.permutation(v.rank)]
    return p.apply("Transpose", [v], v, [v.shape[a] for a in order], perm=order)


def reshape(p: Pool) -> object:
    v = p.some(lambda v: v.rank > 0)
    kind = p.choice(("merge", "flat", "last", "zero"))
    at = p.integer(0, v.rank - 1)
    if kind == "merge" and v.rank > 1:
        wanted = (
            [0] * min(at, v.rank - 2)
            + [-1]
            + [d if isinstance(d, int) else 0 for d in v.shape[min(at, v.rank - 2) + 2 :]]
        )
        if any(w == 0 for w in wanted[min(at, v.rank - 2) + 1 :]):
            raise Unfit
        shape = [*v.shape[: min(at, v.rank - 2)], p.extent(), *v.shape[min(at, v.rank - 2) + 2 :]]
        return p.apply("Reshape", [v, p.ints(*wanted)], v, shape)
    if kind == "last" and isinstance(v.shape[-1], int) and v.shape[-1] % 2 == 0:
        wanted = [0] * (v.rank - 1) + [v.shape[-1] // 2, 2]
        return p.apply("Reshape", [v, p.ints(*wanted)], v, [*v.shape[:-1], v.shape[-1] // 2, 2])
    if kind == "flat":
        return p.apply("Reshape", [v, p.ints(-1)], v, [p.extent()])
    return p.apply("Flatten", [v], v, [p.extent(), p.extent()], axis=at)


def reshape_as(p: Pool) -> object:
    """To a shape computed from that of another value."""
    v = p.some(lambda v: v.rank in (2, 3))
    (shape,) = p.node("Shape", [v])
    taken = p.made(shape, "int64", [v.rank], LONGEST, True)
    first = p.apply("Gather", [taken, p.ints(0)], taken, [1])
    rest = p.constant(np.array([-1]))
    whole = p.apply("Concat", [first, rest], taken, [2], axis=0)
    if v.shape[0] != 1 and p.flip():
        return p.apply("Expand", [p.leaf(v.kind, [1, 1]), taken], v, v.shape, 4)
    return p.apply("Reshape", [v, whole], v, [v.shape[0], p.extent()])


def squeeze(p: Pool) -> object:
    v = p.some(lambda v: 1 in v.shape)
    axes = [a for a, d in enumerate(v.shape) if d == 1][: p.integer(1, 2)]
    shape = [d for a, d in enumerate(v.shape) if a not in axes]
    return p.apply("Squeeze", [v, p.ints(*axes)], v, shape)


def unsqueeze(p: Pool) -> object:
    v = p.some(lambda v: v.rank < 4)
    axis = p.integer(0, v.rank)
    shape = [*v.shape[:axis], 1, *v.shape[axis:]]
    return p.apply("Unsqueeze", [v, p.ints(axis)], v, shape)


def expand(p: Pool) -> object:
    v = p.some(lambda v: 1 in v.shape and v.rank < 5)
    wanted = [p.choice((1, 2, 3, 5)) if d == 1 else 1 for d in v.shape]
    shape = [w if d == 1 else d for d, w in zip(v.shape, wanted)]
    return p.apply("Expand", [v, p.ints(*wanted)], v, shape)


def tile(p: Pool) -> object:
    v = p.some(lambda v: 0 < v.rank < 4)
    times = [p.choice((1, 1, 2, 3)) for _ in v.shape]
    shape = [
        d if t == 1 else d * t if isinstance(d, int) else p.extent() for d, t in zip(v.shape, times)
    ]
    return p.apply("Tile", [v, p.ints(*times)], v, shape)


def concat(p: Pool) -> object:
    """Pieces of which some may be ready long before others have a size."""
    v = p.some(lambda v: v.rank > 0)
    axis = an_axis(p, v)

    def rest(o: Value) -> tuple[object, ...]:
        return (o.kind, o.rank, *(d for a, d in enumerate(o.shape) if a != axis))

    same = [o for o in p.values if o.rank > axis and rest(o) == rest(v)]
    parts = [p.choice(same) for _ in range(p.integer(1, 3))]
    if p.flip(3):
        parts.append(p.leaf(v.kind, [2 if a == axis else d for a, d in enumerate(v.shape)]))
    parts.insert(p.integer(0, len(parts)), v)
    extents = [o.shape[axis] for o in parts]
    numbers = [d for d in extents if isinstance(d, int)]
    whole: Extent = sum(numbers) if len(numbers) == len(extents) else p.extent()
    shape = [whole if a == axis else d for a, d in enumerate(v.shape)]
    bound = max(o.bound for o in parts)
    return p.apply("Concat", parts, v, shape, bound, axis=signed(p, axis, v.rank))


def split(p: Pool) -> object:
    v = p.some(lambda v: v.rank > 0)
    axis = an_axis(p, v)
    extent = v.shape[axis]
    if not isinstance(extent, int) or extent < 2:
        raise Unfit
    first = p.integer(1, extent - 1)
    sizes = [first, extent - first]
    names = p.node("Split", [v, p.ints(*sizes)], 2, axis=axis)
    made = None
    for name, size in zip(names, sizes):
        shape = [size if a == axis else d for a, d in enumerate(v.shape)]
        made = p.made(name, v.kind, shape, v.bound, v.exact)
    return made


def slices(p: Pool) -> object:
    v = p.some(lambda v: v.rank > 0)
    axis = an_axis(p, v)
    step = p.choice((1, 1, 1, 2, -1, -2))
    start, end = p.integer(-4, 4), p.choice((-1, -2, 1, 2, 5, 2**40, -(2**40)))
    given = [p.ints(start), p.ints(end), p.ints(signed(p, axis, v.rank)), p.ints(step)]
    shape = [p.extent() if a == axis else d for a, d in enumerate(v.shape)]
    last = p.apply("Slice", [v, *given], v, shape)
    if p.flip(3):  # what a slice leaves broadcasts against what it was taken from
        return p.apply("Add", [v, last], v, together(p, v.shape, tuple(shape)), v.bound * 2)
    return last


def pad(p: Pool) -> object:
    v = p.some(lambda v: v.rank > 0 and v.kind in ("float32", "float64", "int32", "int64"))
    mode = p.choice(("constant", "constant", "reflect", "edge"))
    low = [p.choice((0, 0, 1, 2)) for _ in v.shape]
    high = [p.choice((0, 0, 1, 3)) for _ in v.shape]
    shape = [
        d + a + b if isinstance(d, int) else p.extent() if a + b else d
        for d, a, b in zip(v.shape, low, high)
    ]
    if mode == "reflect" and any(
        isinstance(d, int) and d <= max(a, b) for d, a, b in zip(v.shape, low, high)
    ):
        raise Unfit
    value = [p.constant(np.array(2), v.kind)] if mode == "constant" and p.flip() else []
    return p.apply("Pad", [v, p.ints(*low, *high), *value], v, shape, max(v.bound, 2), mode=mode)


def resize(p: Pool) -> object:
    v = p.some(lambda v: v.kind == "float32" and v.rank == 4 and not p.odd)
    scale = p.choice((0.5, 1.5, 2.0, 3.0))
    scales = p.constant(np.array([1, 1, scale, scale]), "float32")
    mode = p.choice(("nearest", "linear"))
    shape = [*v.shape[:2], p.extent(), p.extent()]
    attrs = {"mode": mode, "coordinate_transformation_mode": p.choice(("half_pixel", "asymmetric"))}
    exact = mode == "nearest"
    return p.apply("Resize", [v, None, scales], v, shape, exact=exact, **attrs)


# ---------------------------------------------------------------- indices


def gather(p: Pool) -> object:
    v = p.some(lambda v: v.rank > 0)
    axis = an_axis(p, v)
    extent = v.shape[axis]
    limit = extent if isinstance(extent, int) else 1
    if p.flip(3):
        indices = p.some(lambda o: o.kind == "int64" and o.rank < 3 and o.bound < 5)
    else:
        shape = p.choice(((), (), (1,), (3,), (2, 2)))
        numbers = p.rng.integers(-limit, max(limit, 1), shape)
        indices = p.constant(numbers)
    shape_ = [*v.shape[:axis], *indices.shape, *v.shape[axis + 1 :]]
    if len(shape_) > 5:
        raise Unfit
    return p.apply("Gather", [v, indices], v, shape_, axis=signed(p, axis, v.rank))


def gather_elements(p: Pool) -> object:
    v = p.some(lambda v: v.rank > 0 and all(isinstance(d, int) and d > 0 for d in v.shape))
    shape = [int(d) for d in v.shape]
    axis = an_axis(p, v)
    limit = shape[axis]
    shape[axis] = p.integer(1, 4)
    indices = p.constant(p.rng.integers(-limit, limit, shape))
    return p.apply("GatherElements", [v, indices], v, indices.shape, axis=axis)


def scatter(p: Pool) -> object:
    v = p.some(lambda v: v.rank == 2 and v.kind in ("float32", "int64", "int32"))
    updates = p.leaf(v.kind, [1, v.shape[1]])
    where_ = p.constant(np.zeros((1, 1), np.int64))
    kind = p.choice(("none", "add"))
    attrs = {"reduction": kind}
    return p.apply("ScatterND", [v, where_, updates], v, bound=v.bound + updates.bound, **attrs)


def topk(p: Pool) -> object:
    v = p.some(lambda v: v.exact and v.rank > 0 and v.kind in ("float32", "int64"))
    axis = an_axis(p, v)
    extent = v.shape[axis]
    if p.odd or not isinstance(extent, int):
        raise Unfit
    k = p.integer(1, extent)
    values, places = p.node("TopK", [v, p.ints(k)], 2, axis=axis, largest=int(p.flip()))
    shape = [k if a == axis else d for a, d in enumerate(v.shape)]
    p.made(values, v.kind, shape, v.bound, v.exact)
    if p.flip():
        return p.made(places, "int64", shape, LONGEST, True)
    return None


def one_hot(p: Pool) -> object:
    v = p.some(lambda v: v.kind == "int64" and v.rank < 3 and v.exact)
    depth = p.constant(np.array(p.choice((1, 3, 6))))
    ends = p.constant(np.array([0, 2]), "float32")
    (name,) = p.node("OneHot", [v, depth, ends], axis=-1)
    return p.made(name, "float32", [*v.shape, p.extent()], 2, True)


def trilu(p: Pool) -> object:
    v = p.some(lambda v: v.rank > 1 and v.kind in ("float32", "int64"))
    return p.apply("Trilu", [v, p.constant(np.array(p.integer(-2, 2)))], v, upper=int(p.flip()))
