"""Parts of real networks that the studies of kernel orchestration look at: what lies between two ONNX nodes.

In: a folder with NAME.onnx. Out: candidates of a whole canonical network, and the units of a part of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fissile.fission import fission
from fissile.frontend import read_model
from fissile.ir.graph import Graph
from fissile.orchestrate.candidates import Candidates
from fissile.rewrite import canonicalize


@dataclass(frozen=True)
class Window:
    """What lies between two ONNX nodes of a model, both included."""

    title: str
    model: str
    first: str
    last: str


WINDOWS = (
    Window("segformer_attention", "segformer_b0", "node_layer_norm_1", "node_add"),
    Window("segformer_head", "segformer_b0", "node_MatMul_800", "node_Conv_885"),
    Window("efficientvit_attention", "efficientvit_b1", "node_Conv_1028", "node_add_5"),
    Window("candy_residual", "candy_224", "node_pad_3", "node_add"),
    Window("yolox_csp", "yolox_nano", "node_Conv_1720", "node_silu_8"),
    Window("mobilenet_inverted_residual", "mobilenet_v2", "node_Conv_833", "node_add_1"),
    Window("resnet_bottleneck", "resnet50", "node_Conv_763", "node_relu_6"),
    Window("bert_layer", "bert_base", "node_Mul_84", "node_layer_norm_1"),
    Window("minilm_attention", "minilm_l6_dyn", "node_Mul_87", "node_scaled_dot_product_attention"),
    Window("yolov4_mish", "yolov4", "node_Conv_1737", "n0_7"),
)


def canonical(folder: Path, model: str) -> Graph:
    """The canonical primitive graph of a model, nothing substituted."""
    operators = read_model(str(folder / f"{model}.onnx"), None)
    return canonicalize(fission(operators, foreign=True), frozenset()).graph


def units_between(found: Candidates, window: Window) -> frozenset[int]:
    """The numbers of the units from the first that serves one node to the last that serves the other."""
    origins = found.units.graph.origins
    served = [origins.get(unit.value, ()) for unit in found.units.all]
    first = min(u for u, names in enumerate(served) if window.first in names)
    last = max(u for u, names in enumerate(served) if window.last in names)
    return frozenset(range(first, last + 1))
