"""One engine in a process of its own: loads a model, runs it, times it, all on request of the parent.

In: one JSON request a line on standard input. Out: one JSON answer a line. `python -m fissile.compare.engine` is the
child; `ENGINES` says how each engine is loaded. Invariant: an engine is set up as its users would for latency at equal
threads and float32, its settings are said, and nothing is imported but the engine asked for: its memory is its own.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]
WARM_UP_SECONDS = 0.2
REWARM_SECONDS = 0.05  # runs longer than this need no second one to find warm caches


@dataclass(frozen=True)
class Engine:
    """How an engine is loaded: `load(path, threads)`; `packages` are the modules it needs.

    settings: what is chosen, for people. install: what to type where it is absent.
    compiles_late: the first call does what others do when they load, and is counted as loading.
    """

    name: str
    packages: tuple[str, ...]
    settings: str
    install: str
    load: Callable[[str, int], Run]
    compiles_late: bool = False

    @property
    def is_present(self) -> bool:
        """Whether everything it needs can be imported."""
        return all(find_spec(package) is not None for package in self.packages)

    @property
    def version(self) -> str:
        """The version of its first package."""
        try:
            return version(self.packages[0])
        except PackageNotFoundError:
            return "?"


def _load_fissile(path: str, threads: int) -> Run:
    executable = import_module("fissile.runtime.executable").load(path, threads=threads)
    run: Run = executable.run
    return run


def _load_onnxruntime(path: str, threads: int) -> Run:
    runtime = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(None, feeds), strict=True))


def _load_openvino(path: str, threads: int) -> Run:
    openvino = import_module("openvino")
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    compiled = openvino.Core().compile_model(path, "CPU", settings)
    request = compiled.create_infer_request()
    names = [next(iter(output.get_names())) for output in compiled.outputs]
    if len(set(names)) < len(names):
        raise ValueError("outputs share a name")

    def run(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        result = request.infer(dict(feeds), share_inputs=True, share_outputs=True)
        return {name: result[k] for k, name in enumerate(names)}

    return run


def _load_torch(path: str, threads: int) -> Run:
    return _torch(path, threads, compiled=False)


def _load_inductor(path: str, threads: int) -> Run:
    return _torch(path, threads, compiled=True)


def _torch(path: str, threads: int, *, compiled: bool) -> Run:
    """An ONNX model in torch; it is converted, and compiled, in the first call, whose shapes it keeps."""
    torch, onnx = import_module("torch"), import_module("onnx")
    torch.set_num_threads(threads)
    if compiled:
        settings: Any = import_module("torch._inductor.config")
        settings.freezing = settings.max_autotune = True
        # times of library calls are kept without the number of threads: every process takes its own
        settings.autotune_local_cache = False
    model = onnx.load(path)
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [i.name for i in model.graph.input if i.name not in constants]
    names = [output.name for output in model.graph.output]
    made: list[Any] = []

    def run(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        with torch.inference_mode():
            if not made:
                module = import_module("fissile.compare.torch_module").convert(model, feeds)
                made.append(torch.compile(module, dynamic=False) if compiled else module)
            results = made[0](*(torch.from_numpy(feeds[name]) for name in inputs))
        return {name: r.numpy() for name, r in zip(names, results, strict=True)}

    return run


ENGINES: dict[str, Engine] = {
    row.name: row
    for row in (
        Engine("fissile", ("fissile",), "artifact, default", "pip install fissile", _load_fissile),
        Engine(
            "onnxruntime",
            ("onnxruntime",),
            "default, CPUExecutionProvider, intra_op_num_threads = threads",
            "pip install onnxruntime",
            _load_onnxruntime,
        ),
        Engine(
            "openvino",
            ("openvino",),
            "PERFORMANCE_HINT LATENCY, INFERENCE_NUM_THREADS = threads, "
            "INFERENCE_PRECISION_HINT f32, inputs and outputs shared",
            "pip install openvino",
            _load_openvino,
        ),
        Engine(
            "torch",
            ("torch", "onnx"),
            "eager, inference_mode, set_num_threads(threads)",
            "pip install torch",
            _load_torch,
            compiles_late=True,
        ),
        Engine(
            "inductor",
            ("torch", "onnx"),
            "torch.compile(dynamic=False), freezing, max_autotune, inference_mode, "
            "set_num_threads(threads), chosen anew in every process",
            "pip install torch; it also needs a C++ compiler (apt install g++)",
            _load_inductor,
            compiles_late=True,
        ),
    )
}


# ---------------------------------------------------------------- the child


class _Session:
    """What a child holds between requests."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self.feeds: dict[str, Array] = {}
        self.repeats = 1
        self.seconds = 0.0

    def load(self, engine: str, path: str, threads: int, feeds: str, names: list[str]) -> Any:
        """Load and warm up; seconds to load, memory after it, one run's seconds."""
        with np.load(feeds, allow_pickle=False) as archive:
            self.feeds = {name: archive[str(k)] for k, name in enumerate(names)}
        start = time.perf_counter()
        self.run = ENGINES[engine].load(path, threads)
        if ENGINES[engine].compiles_late:
            self._run()
        loaded = time.perf_counter() - start
        memory = _memory("VmRSS")
        self._warm_up()
        return {"load_seconds": loaded, "loaded_bytes": memory, "seconds": self.seconds}

    def outputs(self, path: str) -> Any:
        """Run once and write the outputs to `path`; their names in order."""
        result = self._run()
        np.savez(path, **{str(k): np.asarray(a) for k, a in enumerate(result.values())})  # type: ignore[arg-type]
        return {"names": list(result)}

    def sample(self, least: float) -> Any:
        """Seconds of one run, from as many as take `least` seconds, after one that warms the caches again."""
        repeats = max(1, round(least / max(self.seconds, 1e-9)))
        if self.seconds < REWARM_SECONDS:
            self._run()
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        cpu, start = time.thread_time(), time.perf_counter()
        for _ in range(repeats):
            self._run()
        seconds, spent = time.perf_counter() - start, time.thread_time() - cpu
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - switches
        return {"seconds": seconds / repeats, "cpu": spent / repeats, "switches": switches}

    def memory(self) -> Any:
        """The most memory the process ever had."""
        return {"peak_bytes": _memory("VmHWM")}

    def _run(self) -> Mapping[str, Array]:
        if self.run is None:
            raise ValueError("nothing is loaded")
        return self.run(self.feeds)

    def _warm_up(self) -> None:
        end = time.perf_counter() + WARM_UP_SECONDS
        for turn in range(1_000_000):
            start = time.perf_counter()
            self._run()
            now = time.perf_counter()
            self.seconds = now - start if turn < 2 else min(self.seconds, now - start)
            if turn >= 1 and now > end:
                return


def _memory(field: str) -> int:
    """A line of the process's status in bytes: VmRSS now, VmHWM at its highest."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer requests `{"do": name, ...}` until there are no more; an exception is an answer too."""
    session = _Session()
    actions: dict[str, Callable[..., Any]] = {
        "load": session.load,
        "outputs": session.outputs,
        "sample": session.sample,
        "memory": session.memory,
    }
    for line in requests:
        request = json.loads(line)
        try:
            answer = actions[request.pop("do")](**request)
        except Exception as error:  # noqa: BLE001 - whatever a rival raises is its answer
            reason = str(error).strip().splitlines() or [""]
            answer = {"error": f"{type(error).__name__}: {reason[0]}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    """Serve on standard input and output; what engines print goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
