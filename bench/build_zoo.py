"""ONNX files of well-known networks, for `bench/zoo.py` and for trying fissile: pip install 'fissile[zoo]'.

    python bench/build_zoo.py FOLDER [torch/mlp timm/resnet50 transformers/minilm ...] [--pretrained] [--static]

Names are `torch/` one of TORCH, `torchvision/` and `timm/` any of theirs, `transformers/` one of TRANSFORMERS,
`exported/` one of EXPORTS, which `bench/exports.py` times; none means DEFAULT. Weights are random (seed 0) unless
`--pretrained`, which downloads them. The batch, and for text the length, stay free unless `--static`. Every file is
checked by onnx, and onnxruntime is compared with torch at another batch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from exported import EXPORTS
from network import First, Network, image, text

# The packages to come look for one named `kernels`, and would find the script of this folder.
sys.path = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).parent]

Array = np.ndarray[Any, np.dtype[Any]]
OPSET = 18
TOLERANCE = 1e-3  # of the largest magnitude of an output
DEFAULT = (
    "timm/resnet50", "timm/mobilenetv2_100", "timm/efficientvit_b1", "timm/convnext_tiny",
    "transformers/bert", "transformers/minilm", "transformers/segformer_b0",
)  # fmt: skip


# ---------------------------------------------------------------- where they come from


def _mlp() -> Network:
    layers = [torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128)]
    module = torch.nn.Sequential(*layers, torch.nn.Linear(128, 10), torch.nn.Softmax(-1))
    return Network(module, {"x": torch.randn(2, 64)}, {"x": {0: "batch"}})


def _convnet() -> Network:
    layers: list[torch.nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        layers += [torch.nn.Conv2d(before, after, 3, 2, 1), torch.nn.BatchNorm2d(after)]
        layers.append(torch.nn.SiLU())
    head = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10)]
    return image(torch.nn.Sequential(*layers, *head), 64)


TORCH: dict[str, Callable[[], Network]] = {"mlp": _mlp, "convnet": _convnet}
# name -> class, settings of its configuration, the trained one, size of an image or names of inputs
TRANSFORMERS: dict[str, tuple[str, dict[str, Any], str, int | tuple[str, ...]]] = {
    "bert": ("BertModel", {}, "bert-base-uncased", ("input_ids", "attention_mask")),
    "minilm": (
        "BertModel",
        {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536},
        "sentence-transformers/all-MiniLM-L6-v2",
        ("input_ids", "attention_mask"),
    ),
    "segformer_b0": (
        "SegformerForSemanticSegmentation",
        {"num_labels": 150},
        "nvidia/segformer-b0-finetuned-ade-512-512",
        512,
    ),
}


SOURCES = {"torch": TORCH, "transformers": TRANSFORMERS, "exported": EXPORTS}


def _transformer(name: str, pretrained: bool) -> Network:
    kind, settings, trained, what = TRANSFORMERS[name]
    library = import_module("transformers")
    made = getattr(library, kind)
    if pretrained:
        model = made.from_pretrained(trained)
    else:
        model = made(made.config_class(**settings))
    if isinstance(what, int):
        return image(First(model, ("pixel_values",)), what)
    return text(First(model, what), what)


def network(name: str, pretrained: bool) -> Network:
    """The network called SOURCE/NAME, in evaluation mode; ValueError for a source nobody knows."""
    torch.manual_seed(0)
    source, _, own = name.partition("/")
    if source == "torch" and own in TORCH:
        found = TORCH[own]()
    elif source == "transformers" and own in TRANSFORMERS:
        found = _transformer(own, pretrained)
    elif source == "timm":
        found = image(import_module("timm").create_model(own, pretrained=pretrained))
    elif source == "torchvision":
        weights = "DEFAULT" if pretrained else None
        found = image(import_module("torchvision.models").get_model(own, weights=weights))
    elif source == "exported" and own in EXPORTS:
        found = EXPORTS[own]()
    else:
        known = [f"{s}/{n}" for s, names in SOURCES.items() for n in names]
        raise ValueError(f"{name}: write timm/NAME, torchvision/NAME or one of {', '.join(known)}")
    found.module.eval()
    return found


# ---------------------------------------------------------------- export


def export(found: Network, path: Path, *, static: bool) -> None:
    """Write `found` as one ONNX file with its weights inside."""
    if found.by_script:
        free = {name: dict(axes) for name, axes in found.free.items()}
        torch.onnx.export(
            found.module, tuple(found.inputs.values()), str(path), dynamo=False, opset_version=OPSET,
            input_names=list(found.inputs), dynamic_axes=None if static else free,
        )  # fmt: skip
        return
    axes: Any = tuple(dict(found.free.get(name, {})) for name in found.inputs)
    if isinstance(found.module, First):
        axes = (axes,)  # its forward takes all of them as one
    program = torch.onnx.export(
        found.module, tuple(found.inputs.values()), dynamo=True, opset_version=OPSET,
        input_names=list(found.inputs), dynamic_shapes=None if static else axes, verbose=False,
    )  # fmt: skip
    program.save(str(path), external_data=False)


def gap(found: Network, path: Path, *, static: bool) -> float:
    """The largest difference of onnxruntime from torch, over the largest magnitude; at 3 instead of 2 where free."""
    inputs = dict(found.inputs)
    if not static:
        wider = (name for name, axes in found.free.items() if 0 in axes)
        inputs |= {name: torch.cat([inputs[name], inputs[name][:1]]) for name in wider}
    with torch.inference_mode():
        answer = found.module(*inputs.values())
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    got = session.run(None, {name: value.numpy() for name, value in inputs.items()})
    wanted = [w.numpy() for w in (answer if isinstance(answer, tuple) else (answer,))]
    return max(_apart(w, g) for w, g in zip(wanted, got, strict=True))


def _apart(wanted: Array, got: Array) -> float:
    """The largest difference over the largest magnitude; infinity for unlike shapes."""
    if wanted.shape != got.shape:
        return float("inf")
    wanted = wanted.astype(np.float64)
    return float(np.max(np.abs(got - wanted), initial=0) / np.max(np.abs(wanted), initial=1e-30))


def main() -> None:
    """Parse, export, check; exit 1 if a network failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--pretrained", action="store_true")
    parser.add_argument("--static", action="store_true", help="batch 2 and length 128 are fixed")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    failed = False
    for name in args.names or DEFAULT:
        path = args.folder / f"{name.partition('/')[2]}.onnx"
        try:
            found = network(name, args.pretrained)
            export(found, path, static=args.static)
            onnx.checker.check_model(str(path))
            far = gap(found, path, static=args.static)
        except Exception as error:  # noqa: BLE001 - whatever a library raises is a line of the answer
            reason = (str(error).strip().splitlines() or [""])[0]
            print(f"{name:28} failed: {type(error).__name__}: {reason}", flush=True)
            failed = True
            continue
        failed = failed or far > TOLERANCE
        size = path.stat().st_size / 1e6
        said = "agrees" if far <= TOLERANCE else "DIFFERS"
        print(f"{name:28} {path} {size:.1f} MB, onnxruntime {said} ({far:.0e})", flush=True)
    raise SystemExit(int(failed))


if __name__ == "__main__":
    main()
