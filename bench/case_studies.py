"""The case studies of the Korch paper on this machine: sub-graphs of real networks, and the kernels chosen for them.

    python bench/case_studies.py FOLDER [--budget 60s] [--page docs/case-studies.md] [NAME ...]

A study is what lies between two nodes of a network, cut out as a model of its own, whose inputs are what the network
gives it there. The page says how many kernels fissile, onnxruntime and OpenVINO run, how long all three take (bench,
1 thread), and lists fissile's kernels with what more than one of them computes. FOLDER: see bench/zoo.py.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import openvino
from onnx.utils import Extractor
from zoo import inflated

from fissile import __version__, pipeline
from fissile.compare.table import machine_line
from fissile.ir.graph import Node
from fissile.options import Options, resolve_target
from fissile.orchestrate.plan import Anchor, Kernel, Plan, is_stored_leaf
from fissile.pipeline import Work
from fissile.runtime.machine import facts

Array = np.ndarray[Any, np.dtype[Any]]
ENGINES = ("fissile", "onnxruntime", "openvino")
VIEWS = ("Reshape", "Input", "Output", "Const", "Constant", "Parameter", "Result")  # that cost nothing


@dataclass(frozen=True)
class Study:
    """What lies from node `first` to node `last` of a model, at these extents; `paper` is what Korch says of it."""

    name: str
    title: str
    model: str
    first: str
    last: str
    extents: Mapping[str, int]
    paper: str


SEGFORMER = (
    "Korch reads SegFormer's softmax as exp, sum and division and puts them into different kernels; which ones "
    "depends on the batch size."
)
STUDIES = (
    Study(
        "efficientvit", "EfficientViT attention", "efficientvit_b1", "node_Conv_1028", "node_add_5", {},
        "Korch maps the ReLU attention to fewer kernels than TensorRT and computes cheap values again.",
    ),
    Study(
        "candy", "Candy: instance normalization, ReLU and Pad", "candy_224", "node_pad_3", "node_add", {},
        "Korch moves the normalization's elementwise part and ReLU beside Pad, into one kernel.",
    ),
    Study(
        "segformer_1", "SegFormer attention, batch 1", "segformer_b0_dynb", "node_layer_norm_1",
        "node_add_112", {"batch": 1}, SEGFORMER,
    ),
    Study(
        "segformer_16", "SegFormer attention, batch 16", "segformer_b0_dynb", "node_layer_norm_1",
        "node_add_112", {"batch": 16}, SEGFORMER,
    ),
)  # fmt: skip


# ---------------------------------------------------------------- the sub-graph as a model


def cut(study: Study, model: Path, into: Path) -> dict[str, Array]:
    """Write the sub-graph to `into`, extents fixed; what the network gives to its inputs for a random image."""
    whole = onnx.load(model)
    names = [node.name for node in whole.graph.node]
    inside = whole.graph.node[names.index(study.first) : names.index(study.last) + 1]
    made = {o for node in inside for o in node.output}
    read = dict.fromkeys(i for node in inside for i in node.input if i and i not in made)
    constant = _constants(whole)
    crossing = [name for name in read if name not in constant]
    feeds = _values(whole, crossing, study.extents)
    part = Extractor(whole).extract_model(crossing, list(inside[-1].output))
    for tensor in part.graph.input:
        dims = tensor.type.tensor_type.shape
        dims.ClearField("dim")
        for extent in feeds[tensor.name].shape:
            dims.dim.add().dim_value = extent
    del part.graph.value_info[:]
    onnx.save(onnx.shape_inference.infer_shapes(part), into)
    return feeds


def _constants(model: onnx.ModelProto) -> set[str]:
    """Initializers, and what is computed from nothing else; shapes of inputs count as such."""
    found = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" or all(i in found for i in node.input if i):
            found.update(node.output)
    return found


def _values(model: onnx.ModelProto, names: list[str], extents: Mapping[str, int]) -> dict[str, Array]:
    """What the tensors hold in a run on random inputs."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    known = {v.name for v in probe.graph.output}
    probe.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in known)
    session = onnxruntime.InferenceSession(probe.SerializeToString(), providers=["CPUExecutionProvider"])
    draw = np.random.default_rng(0)
    feeds = {
        i.name: draw.standard_normal([extents.get(d, 1) if isinstance(d, str) else d for d in i.shape])
        for i in session.get_inputs()
    }
    found = session.run(names, {name: a.astype(np.float32) for name, a in feeds.items()})
    return dict(zip(names, found, strict=True))


# ---------------------------------------------------------------- who runs how many kernels


def onnxruntime_kernels(model: Path, folder: Path) -> list[str]:
    """The operators onnxruntime runs after all its own fusions."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    types = [n.op_type for n in onnx.load(folder / "optimized.onnx").graph.node]
    return [t for t in types if t not in VIEWS]


def openvino_kernels(model: Path) -> list[str]:
    """The layers OpenVINO runs after all its own fusions."""
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(model), "CPU", settings)
    layers = compiled.get_runtime_model().get_ordered_ops()
    types = [layer.get_rt_info()["layerType"].astype(str) for layer in layers]
    return [t for t in types if t not in VIEWS]


def tuned(model: Path, artifact: Path, plan: Path, budget: str) -> Plan:
    """Tune the model; the plan that was chosen."""
    command = ["tune", model, "--budget", budget, "-o", artifact, "--save-plan", plan, "--threads", 1]
    _fissile(*command)
    work = Work(model, None, (resolve_target("native"),), 1, Options(plan=plan))
    found: Plan = pipeline.run(work, lambda event: None, "plan").known("plan")
    return found


def _fissile(*arguments: object) -> str:
    command = [sys.executable, "-m", "fissile.cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise RuntimeError((done.stderr.strip().splitlines() or ["died"])[-1])
    return done.stdout


def computed(kernel: Kernel) -> set[Node]:
    """Every primitive that a kernel computes on the way from its inputs to its outputs."""
    found: set[Node] = set()
    is_piece = kernel.anchor is Anchor.PIECE
    stack = [kernel.nodes[0].inputs[kernel.piece]] if is_piece else list(kernel.outputs)
    while stack:
        node = stack.pop()
        if node not in found and node not in kernel.inputs and not is_stored_leaf(node):
            found.add(node)
            stack.extend(node.inputs)
    return found


def again(plan: Plan) -> Counter[str]:
    """Primitives that do arithmetic in more than one kernel: names and how many extra times."""
    times = Counter(node for kernel in plan.kernels() for node in computed(kernel))
    found: Counter[str] = Counter()
    for node, count in times.items():
        if node.primitive.kind in ("elementwise", "reduce", "linear") and count > 1:
            found[node.name] += count - 1
    return found


# ---------------------------------------------------------------- the page


def section(study: Study, folder: Path, args: argparse.Namespace) -> list[str]:
    """One study as Markdown."""
    with tempfile.TemporaryDirectory() as text:
        place = Path(text)
        model, artifact = place / "part.onnx", place / "part.fsl"
        feeds = cut(study, inflated(folder, study.model, place), model)
        np.savez(place / "feeds.npz", **feeds)  # type: ignore[arg-type]
        plan = tuned(model, artifact, place / "plan.json", args.budget)
        answer = _fissile(
            "bench", artifact, "--model", model, "--input", place / "feeds.npz", "--json",
            "--against", "onnxruntime,openvino", "--rounds", args.rounds,
        )  # fmt: skip
        others = {
            "onnxruntime": onnxruntime_kernels(model, place),
            "openvino": openvino_kernels(model),
        }
    return [f"## {study.title}", "", study.paper, "", *_counts(plan, others, json.loads(answer)), *_kernels(plan)]


def _counts(plan: Plan, others: Mapping[str, list[str]], found: Mapping[str, Any]) -> Iterator[str]:
    times = {record["engine"]: record for record in found["records"]}
    yield "| engine | kernels | time | over fissile's | what it runs |"
    yield "|---|---|---|---|---|"
    for engine in ENGINES:
        record = times.get(engine)
        said = f"{record['p10_seconds'] * 1e6:.0f} us" if record else "-"
        interval = f"[{record['ratio_low']:.2f}, {record['ratio_high']:.2f}]" if record else ""
        ratio = f"{record['ratio']:.2f} {interval}" if record and engine != "fissile" else "1"
        kinds = Counter(k.anchor.value for k in plan.kernels()) if engine == "fissile" else Counter(others[engine])
        what = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        yield f"| {engine} | {kinds.total()} | {said} | {ratio} | {what} |"
    extra = again(plan)
    twice = ", ".join(f"{name} ({count})" for name, count in extra.most_common())
    yield ""
    yield f"Computed in more than one kernel: {twice or 'nothing'}."
    yield ""


def _kernels(plan: Plan) -> Iterator[str]:
    yield "| kernel | ONNX nodes | primitives |"
    yield "|---|---|---|"
    for kernel in plan.kernels():
        inside = [n for n in plan.graph.nodes() if n in computed(kernel)] or [*kernel.nodes]
        nodes = dict.fromkeys(name for n in inside for name in plan.graph.origins.get(n, ()))
        names = ", ".join(n.removeprefix("node_") for n in nodes)
        yield f"| {kernel.anchor.value} | {names} | {' '.join(n.name for n in inside)} |"
    yield ""


def main() -> None:
    """Parse, run, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(s.name for s in STUDIES)}")
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--page", type=Path, default=Path("docs/case-studies.md"))
    args = parser.parse_args()
    versions = {"onnxruntime": onnxruntime.__version__, "openvino": openvino.__version__}
    lines = [
        "# Case studies",
        "",
        "The case studies of the Korch paper (ASPLOS'24), by what fissile chooses on this machine. Made by",
        f"`bench/case_studies.py`, {time.strftime('%Y-%m-%d')}, fissile {__version__}.",
        "",
        f"    {machine_line(facts(), versions)}",
        "",
        "Each sub-graph is a model of its own, its inputs what the network gives it there for a random image;",
        f"1 thread, warm, 10th percentiles. fissile is tuned ({args.budget}). Kernels of the others: operators or",
        "layers left after their own fusions, reshapes not counted. Outputs are not copied: those of fissile and",
        "onnxruntime are the caller's to keep, OpenVINO's hold until its next call.",
        "",
    ]
    for study in STUDIES:
        if not args.names or study.name in args.names:
            lines += section(study, args.folder, args)
            print("\n".join(lines[-40:]), flush=True)
            args.page.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
