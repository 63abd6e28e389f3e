"""Read rendered text with the trained PP-OCRv4 models, through fissile and through onnxruntime.

In: nothing; the images are drawn here, the models are data files of `rapidocr-onnxruntime` (its own
engine is not used). Out: the text of every line, the time per image of both engines, exit 1 if a
line is read wrong. Detection, direction and recognition are run with free heights and widths, so
every image uses the same three artifacts at other shapes.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float32]
Engine = Callable[[Floats], Floats]

MODELS = {
    "detect": "ch_PP-OCRv4_det_infer.onnx",
    "direct": "ch_ppocr_mobile_v2.0_cls_infer.onnx",
    "recognise": "ch_PP-OCRv4_rec_infer.onnx",
}
# One tuple is one image. Widths differ on purpose.
PAGES: tuple[tuple[str, ...], ...] = (
    ("Hello fissile",),
    ("One artifact, any shape", "42"),
    ("The quick brown fox", "jumps over the lazy dog", "0123456789"),
    ("Split every operator into", "small primitives, then find", "the cheapest cover", "Proved."),
    ("A considerably longer line of text, wider than all others here",),
)
UPSIDE_DOWN = {4}  # pages turned by 180 degrees before reading


@dataclass(frozen=True)
class Reader:
    """The three networks as callables and the recogniser's alphabet (index 0 is the CTC blank)."""

    detect: Engine
    direct: Engine
    recognise: Engine
    alphabet: tuple[str, ...]


@dataclass(frozen=True)
class Box:
    """A text line in pixels of the page: rows top..bottom, columns left..right, ends excluded."""

    top: int
    bottom: int
    left: int
    right: int


def model_path(name: str) -> Path:
    """The installed file called `name`; exits with the command that installs it."""
    for file in files("rapidocr-onnxruntime") or ():
        if file.name == name:
            return Path(str(file.locate()))
    raise SystemExit(
        "the models are missing; do: pip install --no-deps rapidocr-onnxruntime==1.4.4"
    )


def draw(lines: Sequence[str], size: int = 28) -> Pixels:
    """Black text on white, one line under the other -> uint8[height, width, 3]."""
    font = ImageFont.load_default(size)
    width = max(int(font.getlength(line)) for line in lines) + 3 * size
    page = Image.new("RGB", (width, (2 * len(lines) + 2) * size), "white")
    pen = ImageDraw.Draw(page)
    for row, line in enumerate(lines):
        pen.text((1.5 * size, (2 * row + 1.3) * size), line, fill="black", font=font)
    return np.asarray(page, dtype=np.uint8)


def resize(image: Pixels, height: int, width: int) -> Pixels:
    """Bilinear resize to uint8[height, width, 3]."""
    bilinear = Image.Resampling.BILINEAR
    return np.asarray(Image.fromarray(image).resize((width, height), bilinear), dtype=np.uint8)


def normalise(image: Pixels) -> Floats:
    """uint8[h, w, 3] -> float32[1, 3, h, w] in -1..1."""
    scaled = image.astype(np.float32).transpose(2, 0, 1)[None] / np.float32(127.5) - np.float32(1)
    return np.ascontiguousarray(scaled)


def read_page(reader: Reader, page: Pixels) -> list[str]:
    """The lines of a page from top to bottom."""
    crops = [page[b.top : b.bottom, b.left : b.right] for b in find_lines(reader.detect, page)]
    turned = [is_upside_down(reader.direct, crop) for crop in crops]
    upright = [np.rot90(c, 2) if t else c for c, t in zip(crops, turned, strict=True)]
    texts = [read_line(reader, np.ascontiguousarray(crop)) for crop in upright]
    return texts[::-1] if sum(turned) * 2 > len(turned) else texts


def find_lines(detect: Engine, page: Pixels, threshold: float = 0.3) -> list[Box]:
    """Boxes of text lines, top to bottom: connected regions of the probability map, grown a bit.

    The map marks shrunken lines (differentiable binarisation); a region of area A and perimeter L
    is grown by 1.6 A / L on each side to undo that.
    """
    height, width = page.shape[:2]
    rows, columns = (max(32, round(n / 32) * 32) for n in (height, width))
    probability = detect(normalise(resize(page, rows, columns)))[0, 0]
    boxes = []
    for region in connected_regions(probability > threshold):
        y, x = region
        tall, wide = int(np.ptp(y)) + 1, int(np.ptp(x)) + 1
        if min(tall, wide) < 3 or probability[y, x].mean() < 0.5:
            continue
        grow = 1.6 * tall * wide / (2 * (tall + wide))
        top, bottom = (y.min() - grow) * height / rows, (y.max() + 1 + grow) * height / rows
        left, right = (x.min() - grow) * width / columns, (x.max() + 1 + grow) * width / columns
        boxes.append(
            Box(
                max(0, int(top)),
                min(height, int(bottom) + 1),
                max(0, int(left)),
                min(width, int(right) + 1),
            )
        )
    return sorted(boxes, key=lambda box: box.top)


def connected_regions(mask: NDArray[np.bool_]) -> Iterable[tuple[NDArray[np.intp], ...]]:
    """(rows, columns) of each 4-connected region of True, by spreading the smallest label.

    Labels jump along whole runs of a row or column per sweep, so a few sweeps are enough.
    """
    label = np.where(mask, np.arange(1, mask.size + 1).reshape(mask.shape), 0)
    before = None
    while before is None or not np.array_equal(label, before):
        before = label
        label = _spread(_spread(label).T).T
    for value in np.unique(label[label > 0]):
        yield np.nonzero(label == value)


def _spread(label: NDArray[np.intp]) -> NDArray[np.intp]:
    """Each run of non-zeros in a row takes its smallest label."""
    flat = np.pad(label, ((0, 0), (0, 1))).ravel()
    starts = np.flatnonzero((flat > 0) & (np.concatenate(([0], flat[:-1])) == 0))
    if not len(starts):
        return label
    filled = np.where(flat > 0, flat, np.iinfo(flat.dtype).max)
    smallest = np.minimum.reduceat(filled, starts)
    run = np.cumsum(np.isin(np.arange(flat.size), starts, assume_unique=True)) - 1
    spread = np.where(flat > 0, smallest[np.maximum(run, 0)], 0)
    return spread.reshape(label.shape[0], -1)[:, :-1]


def is_upside_down(direct: Engine, crop: Pixels) -> bool:
    """Whether the direction network is sure that the line stands on its head."""
    width = min(192, max(1, round(48 * crop.shape[1] / crop.shape[0])))
    image = np.zeros((1, 3, 48, 192), np.float32)
    image[:, :, :, :width] = normalise(resize(crop, 48, width))
    return bool(direct(image)[0, 1] > 0.9)


def read_line(reader: Reader, crop: Pixels) -> str:
    """Greedy CTC: the best symbol per step, repeats merged, blanks dropped."""
    width = max(16, round(48 * crop.shape[1] / crop.shape[0]))
    best = reader.recognise(normalise(resize(crop, 48, width)))[0].argmax(axis=1)
    kept = best[np.concatenate(([True], best[1:] != best[:-1])) & (best != 0)]
    return "".join(reader.alphabet[i] for i in kept)


def fissile_reader(threads: int | None) -> Reader:
    """The three models compiled (or taken from the compile cache)."""
    import fissile

    def engine(role: str) -> tuple[Engine, str]:
        exe = fissile.compile(model_path(MODELS[role]), threads=threads)
        name, output = exe.inputs[0].name, exe.outputs[0].name
        return lambda x: exe.run({name: x})[output], exe.metadata.get("character", "")

    return _reader(engine)


def onnxruntime_reader(threads: int | None) -> Reader:
    """The same models in onnxruntime with default optimisation."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or 0

    def engine(role: str) -> tuple[Engine, str]:
        session = onnxruntime.InferenceSession(
            model_path(MODELS[role]), options, providers=["CPUExecutionProvider"]
        )
        name = session.get_inputs()[0].name
        characters = session.get_modelmeta().custom_metadata_map.get("character", "")
        return lambda x: session.run(None, {name: x})[0], characters

    return _reader(engine)


def _reader(engine: Callable[[str], tuple[Engine, str]]) -> Reader:
    detect, direct, (recognise, characters) = (engine(role) for role in MODELS)
    return Reader(detect[0], direct[0], recognise, ("", *characters.splitlines(), " "))


def seconds_per_page(readers: dict[str, Reader], pages: Sequence[Pixels], rounds: int) -> None:
    """Median times of each engine on each page, rounds interleaved, every shape warmed up before."""
    samples: dict[tuple[str, int], list[float]] = {}
    for _ in range(rounds):
        for number, page in enumerate(pages):
            for name, reader in readers.items():
                start = time.perf_counter()
                read_page(reader, page)
                samples.setdefault((name, number), []).append(time.perf_counter() - start)
    print("\npage   size" + "".join(f"{name:>18}" for name in readers))
    for number, page in enumerate(pages):
        size = f"{page.shape[1]}x{page.shape[0]}"
        medians = (statistics.median(samples[name, number]) for name in readers)
        print(f"{number + 1:4}   {size:9}" + "".join(f"{m * 1e3:13.1f} ms" for m in medians))


def check(name: str, reader: Reader, pages: Sequence[Pixels]) -> int:
    """Print what is read on every page; how many lines are wrong."""
    wrong = 0
    for number, page in enumerate(pages):
        texts = read_page(reader, page)
        for expected, text in zip(PAGES[number], texts, strict=False):
            mark = "ok   " if text == expected else "WRONG"
            print(f"{name:12} page {number + 1}  {mark}  {text}")
        wrong += sum(a != b for a, b in zip(PAGES[number], texts, strict=False))
        wrong += abs(len(texts) - len(PAGES[number]))
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every engine reads every line right."""
    parser = argparse.ArgumentParser(description="OCR through fissile and onnxruntime")
    parser.add_argument("--engines", default="fissile,onnxruntime", help="comma-separated")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args(arguments)
    makers = {"fissile": fissile_reader, "onnxruntime": onnxruntime_reader}
    pages = [draw(lines) for lines in PAGES]
    pages = [
        np.ascontiguousarray(np.rot90(page, 2)) if number in UPSIDE_DOWN else page
        for number, page in enumerate(pages)
    ]
    readers = {}
    for name in chosen.engines.split(","):
        start = time.perf_counter()
        readers[name] = makers[name](chosen.threads)
        print(f"{name}: three models ready in {time.perf_counter() - start:.1f} s")
    wrong = sum(check(name, reader, pages) for name, reader in readers.items())
    seconds_per_page(readers, pages, chosen.rounds)
    print("\nevery line was read right" if not wrong else f"\n{wrong} lines were read wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
