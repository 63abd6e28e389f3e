"""What `build_zoo.py` exports: a module and how it is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Network:
    """A module and how it is called.

    inputs: name -> example; free: input -> axis -> name of the dimension, or what torch.export takes in its place.
    by_script: by the exporter of TorchScript instead of torch.export.
    """

    module: torch.nn.Module
    inputs: Mapping[str, torch.Tensor]
    free: Mapping[str, Mapping[int, Any]]
    by_script: bool = False


class First(torch.nn.Module):
    """The first output of a model that answers with a record; `names` are those of its parameters."""

    def __init__(self, model: torch.nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.model(**dict(zip(self.names, tensors, strict=True)), return_dict=True)[0]


def image(module: torch.nn.Module, size: int = 224) -> Network:
    """A network of one image."""
    return Network(module, {"x": torch.randn(2, 3, size, size)}, {"x": {0: "batch"}})


def text(module: torch.nn.Module, names: Sequence[str]) -> Network:
    """A network of token numbers, masks and the like, all [batch, seq]."""
    free = {0: "batch", 1: "seq"}
    ones = {name: torch.ones(2, 128, dtype=torch.int64) for name in names}
    return Network(module, ones, dict.fromkeys(names, free))
