"""ConvTranspose in Python.

In: x[N, C, spatial..], w[C, O / groups, taps..]. Out: y[N, O, spatial..]. Invariant: only elements of x meet weights,
no zero around or between them, so that infinite weights stay where they belong.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from fissile.reference.base import Array, Corrected


class ConvTranspose(Corrected):
    """Every element of x times the kernel, added up where the copies overlap."""

    def _run(
        self, x: Array, w: Array, bias: Array | None = None, **attributes: Any
    ) -> tuple[Array]:
        groups, rank = self.given("group", 1), x.ndim - 2
        strides = self.given("strides") or [1] * rank
        dilations = self.given("dilations") or [1] * rank
        spans = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
        full = [(n - 1) * s + k for n, s, k in zip(x.shape[2:], strides, spans, strict=True)]
        outs = w.shape[1] * groups
        y = np.zeros((len(x), outs, *full), x.dtype)
        rows = x.reshape(len(x), groups, -1, *x.shape[2:])
        kernels = w.reshape(groups, -1, *w.shape[1:])
        for taps in product(*map(range, w.shape[2:])):
            at: tuple[Any, ...] = (..., *taps)
            piece = np.einsum("ngc...,gco->ngo...", rows, kernels[at])
            places = tuple(
                slice(t * d, t * d + (n - 1) * s + 1, s)
                for t, d, n, s in zip(taps, dilations, x.shape[2:], strides, strict=True)
            )
            y[:, :, *places] += piece.reshape(len(x), outs, *x.shape[2:])
        y = self._cut(y, x.shape[2:], strides)
        if bias is not None:
            y = y + bias.reshape(-1, *[1] * rank)
        return (y.astype(x.dtype),)

    def _cut(self, y: Array, spatial: tuple[int, ...], strides: list[int]) -> Array:
        """The part that paddings and the wanted extents leave, with zeros behind it where they want more."""
        rank = len(spatial)
        tail = self.given("output_padding") or [0] * rank
        pads = self.given("pads") or [0] * 2 * rank
        mode, wanted = self.given("auto_pad", "NOTSET"), self.given("output_shape")
        for a in range(rank):
            full = y.shape[2 + a] + tail[a]
            low, extent = pads[a], full - pads[a] - pads[rank + a]
            if wanted or mode.startswith("SAME"):
                extent = wanted[a - rank] if wanted else spatial[a] * strides[a]
                over = max(full - extent, 0)
                low = over - over // 2 if mode == "SAME_LOWER" else over // 2
            elif mode == "VALID":
                low, extent = 0, full
            width = [(0, 0)] * y.ndim
            width[2 + a] = (0, max(low + extent - y.shape[2 + a], 0))
            y = np.take(np.pad(y, width), range(low, low + extent), 2 + a)
        return y
