"""The short-time Fourier transform in Python.

In: signals. Out: their spectra, frame by frame, real and imaginary parts along the last axis.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fissile.reference.base import Array, Corrected


class STFT(Corrected):
    """signal[N, T], [N, T, 1] or, of complex numbers, [N, T, 2] to [N, frames, bins, 2]."""

    def _run(
        self,
        signal: Array,
        step: Array,
        window: Array | None = None,
        length: Array | None = None,
        **attributes: Any,
    ) -> tuple[Array]:
        parts = signal if signal.ndim == 3 else signal[..., None]
        values = parts[..., 0] + 1j * parts[..., 1] if parts.shape[-1] == 2 else parts[..., 0]
        given = parts.shape[1] if window is None else len(window)
        size = given if length is None else int(np.asarray(length).reshape(-1)[0])
        hop = int(np.asarray(step).reshape(-1)[0])
        count = 1 + (values.shape[1] - size) // hop
        places = hop * np.arange(count)[:, None] + np.arange(size)
        frames = values[:, places] * (np.ones(size) if window is None else window)
        spectrum = np.fft.fft(frames, axis=-1)
        if self.given("onesided", 1):
            spectrum = spectrum[..., : size // 2 + 1]
        return (np.stack([spectrum.real, spectrum.imag], -1).astype(signal.dtype),)
