"""Feeds and outputs at the boundary: what is accepted, what is copied, what is refused (PRODUCT 4.3).

In: anything array-like per input name, or arrays to write into. Out: C-contiguous, aligned,
native-order numpy arrays of exactly the declared dtype and rank.
Invariant: nothing is ever rounded silently; all problems of one kind stand in one error.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fissile.errors import InvalidFeed, Place, did_you_mean
from fissile.runtime.plan import TensorInfo

Array = npt.NDArray[Any]


def collect(infos: Sequence[TensorInfo], feeds: Mapping[str, Any]) -> list[Array]:
    """The feeds as arrays in the order of the inputs; InvalidFeed F201 to F204 and F207."""
    check_names(infos, feeds)
    return [convert(info, feeds[info.name]) for info in infos]


def check_names(infos: Sequence[TensorInfo], feeds: Mapping[str, Any]) -> None:
    """F202 for names that are no input, F201 for inputs that are missing."""
    names = [info.name for info in infos]
    unknown = [name for name in feeds if name not in names]
    missing = [name for name in names if name not in feeds]
    if unknown:
        hints = [did_you_mean(str(name), missing or names) for name in unknown]
        raise InvalidFeed(
            "F202",
            "feeds name inputs the model does not have",
            where=[Place(str(n), detail=hint) for n, hint in zip(unknown, hints)],
            reason=f"inputs: {', '.join(names) or 'none'}",
            remedy="an initializer is fed where it is named when compiling: Options(overridable=[NAME])",
        )
    if missing:
        raise InvalidFeed(
            "F201",
            "inputs are missing from the feeds",
            where=missing,
            reason=f"given: {', '.join(map(str, feeds)) or 'nothing'}",
        )


def convert(info: TensorInfo, value: Any) -> Array:
    """One feed as the array native code reads; copied only where its layout demands it."""
    array = _as_array(info, value)
    if array.dtype != info.dtype:
        if array.dtype.newbyteorder("=") != info.dtype:
            raise _wrong_dtype(info, array)
        array = array.astype(info.dtype)
    if array.ndim != len(info.shape):
        raise InvalidFeed(
            "F204",
            f"{info.name} has rank {array.ndim}, the model wants rank {len(info.shape)}",
            where=Place(
                info.name, detail=f"shape {array.shape}, expected {shape_text(info.shape)}"
            ),
            remedy=f"feed an array of {len(info.shape)} axes",
        )
    if not (array.flags.c_contiguous and array.flags.aligned):
        array = np.array(array, order="C", copy=True)
    return array


def check_out(info: TensorInfo, target: Array, shape: tuple[int, ...]) -> None:
    """F208 unless `target` can be written into as this output."""
    problem = ""
    if type(target) is not np.ndarray or target.dtype != info.dtype:
        problem = f"it must be a numpy array of {info.dtype}"
    elif target.shape != shape:
        problem = f"its shape is {target.shape}, the output's is {shape}"
    elif not (target.flags.c_contiguous and target.flags.aligned and target.flags.writeable):
        problem = "it must be C-contiguous, aligned and writable"
    if problem:
        raise InvalidFeed("F208", f"out[{info.name!r}] cannot hold the output", reason=problem)


def check_overlap(targets: Mapping[str, Array], inputs: Sequence[Array]) -> None:
    """F208 if an array of `out` shares memory with an input or with another one."""
    seen = list(inputs)
    for name, target in targets.items():
        if any(np.may_share_memory(target, other) for other in seen):
            raise InvalidFeed(
                "F208",
                f"out[{name!r}] overlaps an input or another output",
                remedy="give it memory of its own, or leave it out",
            )
        seen.append(target)


def shape_text(shape: Sequence[int | str | None]) -> str:
    """`[1,batch,?]`."""
    return "[" + ",".join("?" if d is None else str(d) for d in shape) + "]"


def _as_array(info: TensorInfo, value: Any) -> Array:
    if value is None:
        raise InvalidFeed("F207", f"{info.name} is None; an array is needed")
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise InvalidFeed(
            "F203",
            f"{info.name} is a masked array",
            reason="masked elements have no value",
            remedy=f"{info.name}.filled(0)",
        )
    try:
        if isinstance(value, np.ndarray | np.generic):
            return np.asarray(value)
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
        array = np.asarray(value)
    except Exception as error:  # of another package's array, anything
        raise InvalidFeed(
            "F203",
            f"{info.name} is no array",
            where=Place(info.name, detail=type(value).__name__),
            reason=f"{type(error).__name__}: {error}",
            remedy="feed a numpy array",
        ) from error
    if hasattr(value, "__array__"):
        return array
    # Python numbers have no width of their own: any type of the same kind or a wider kind takes them.
    fits = array.size == 0 or np.can_cast(array.dtype, info.dtype, "same_kind")
    if not fits and array.dtype.kind in "iu" and info.dtype.kind in "iu":
        fits = bool((array == array.astype(info.dtype)).all())
    if not fits and array.dtype.kind not in "fiub":
        raise _wrong_dtype(info, array)
    if not fits and info.dtype.kind not in "V":
        raise _wrong_dtype(info, array)
    return array.astype(info.dtype)


def _wrong_dtype(info: TensorInfo, array: Array) -> InvalidFeed:
    return InvalidFeed(
        "F203",
        f"{info.name} is {array.dtype}, the model wants {info.dtype}",
        where=Place(info.name, detail=f"shape {array.shape}"),
        reason="arrays are not converted silently",
        remedy=f"{info.name}.astype({info.dtype.name!r})",
    )
