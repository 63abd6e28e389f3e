"""`fissile report`: what the compiler records, what is measured, and that a page is data and nothing else.

In: a model whose names are markup, compiled twice. Out: the record of its artifact, the data in its page. The page
itself is tried in a browser by `test_page.py`.
"""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from fissile.report.facts import about
from fissile.report.page import page
from fissile.report.record import KEY, unpacked
from fissile.runtime.artifact import read_artifact
from tests.report.pages import EVIL, Place, data_of


@pytest.fixture(scope="module")
def record(place: Place) -> dict[str, Any]:
    artifact = read_artifact(place.folder / "hostile.fsl")
    found = unpacked(json.loads(bytes(artifact.member("report.json"))))
    assert found is not None
    return found


def test_every_kernel_says_what_it_is(record: dict[str, Any]) -> None:
    texts = record["texts"]
    types = [texts[row[1]] for row in record["operators"]]
    block, end = ["MatMul", "Erf", "MatMul", "Add"], ["Transpose"] * 2 + ["Softmax", "ReduceSum"]
    assert types == [f"{name}(17)" for name in block * 4 + end]
    assert record["operators"][4][2] == [3]  # the second block reads the first one's sum
    served = {texts[n] for k in record["kernels"] for n in k["serves"]}
    assert {f"{EVIL}{k}" for k in range(4)} | {"soft", "sum"} <= served
    for kernel in record["kernels"]:
        assert kernel["function"] in record["loops"]
        assert kernel["nodes"]
        assert set(kernel["stored"]) <= set(kernel["inputs"])
    products = [k for k in record["kernels"] if k["anchor"] == "linear"]
    assert len(products) == 8
    assert {k["work"][0] for k in products} == {str(4 * 9 * 16)}  # weights in panels of 16 columns
    assert all("n<i>" in k["work"][1] for k in products)


def test_kernels_that_share_a_tensor_say_why_they_are_two(record: dict[str, Any]) -> None:
    written = {n: k for k, row in enumerate(record["kernels"]) for n in row["outputs"]}
    reads = {(n, k) for k, row in enumerate(record["kernels"]) for n in row["inputs"]}
    pairs = {(written[n], k) for n, k in reads if n in written}
    assert {(a, b) for a, b, _ in record["refusals"]} == pairs
    reasons = {reason for _, _, reason in record["refusals"]}
    assert "two linear primitives" in reasons
    assert all(reasons)


def test_rules_that_fired_have_law_count_and_examples(record: dict[str, Any]) -> None:
    assert record["rules"]["merge_transposes"]["fired"] == 1
    for name, row in record["rules"].items():
        assert row["law"]
        told = [f for f in record["examples"] if f[0] == name]
        assert 1 <= len(told) <= 12
        assert len(told) == min(row["fired"], 12)
        assert all(before != after for _, _, before, after, _ in told)


def test_the_record_is_small_and_the_same_each_time(place: Place) -> None:
    first = (place.folder / "hostile.fsl").read_bytes()
    options = ("--threads", "1", "-q", "--no-cache", "-o", "again.fsl")
    again = place.fissile("compile", "hostile.onnx", *options)
    assert again.returncode == 0
    assert (place.folder / "again.fsl").read_bytes() == first
    artifact = read_artifact(place.folder / "hostile.fsl")
    assert len(artifact.member("report.json")) < 40_000
    report = json.loads(bytes(artifact.member("report.json")))
    assert not re.search(r"20\d\d-\d\d-\d\d", json.dumps(unpacked(report)))


def test_what_is_not_a_record_is_refused() -> None:
    assert unpacked({}) is None
    rows: tuple[Any, ...] = ({"zlib": "!"}, {"zlib": base64.b85encode(b"junk").decode()}, {}, [])
    for damaged in rows:
        with pytest.raises(ValueError, match="damaged"):
            unpacked({KEY: damaged})


def test_an_artifact_without_record_still_has_kernels(place: Place) -> None:
    artifact = read_artifact(place.folder / "hostile.fsl")
    full = about(artifact, "hostile.fsl")
    offset, size = artifact.spans["manifest.json"]
    assert (offset, size) == artifact.spans["manifest.json"]
    bare = type(artifact)(
        artifact.path, artifact.status, _without_report(artifact), artifact.spans, artifact.manifest, artifact.sha256
    )  # fmt: skip
    found = about(bare, "hostile.fsl")["record"]
    names = [[full["record"]["texts"][n] for n in k["serves"]] for k in full["record"]["kernels"]]
    assert [[found["texts"][n] for n in k["serves"]] for k in found["kernels"]] == names


def _without_report(artifact: Any) -> Any:
    copy = bytearray(artifact.buffer)
    offset, size = artifact.spans["report.json"]
    copy[offset : offset + size] = b"{}".ljust(size)
    return copy


def test_runs_are_measured_kernel_by_kernel(place: Place) -> None:
    document = place.document()
    first, second = document["artifacts"]
    assert document["machine"]["cpu"]
    assert first["call"]["inputs"] == ["x<b> float32[5, 9]"]
    assert first["call"]["arena"] > 0
    for artifact in (first, second):
        count = len(artifact["record"]["kernels"])
        for run in artifact["runs"]:
            assert len(run["whole"]) >= 5
            parts = [run[key] for key in ("samples", "floors", "limits", "bytes", "operations")]
            assert {len(part) for part in parts} == {count}
            assert all(s >= 0 for row in run["samples"] for s in row)
            assert sum(run["operations"]) > 8 * 2 * 5 * 9 * 9
    assert first["runs"][0]["threads"] == 1
    assert second["record"]["loops"] == {}
    assert "merge_transposes" in second["manifest"]["options"]["disable"]
    assert document["misses"]  # the model lies beside the artifact
    assert all({"reason", "count"} <= set(m) for rows in document["misses"].values() for m in rows)


class _Tags(html.parser.HTMLParser):
    """Start tags of a page, and attributes that would run something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.suspicious: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.suspicious += [k for k, v in attrs if k.startswith("on") or k in ("src", "srcset")]


def test_names_never_become_markup(place: Place) -> None:
    text = (place.folder / "both.html").read_text(encoding="utf-8")
    assert EVIL in json.dumps(data_of(text), ensure_ascii=False).replace('\\"', '"').replace("\\\\", "\\")  # fmt: skip
    tags = _Tags()
    tags.feed(text)
    assert tags.suspicious == []
    assert tags.tags.count("script") == 2
    assert "img" not in tags.tags
    block = text.split('id="data">')[1].split("</script>")[0]
    assert not set("<>&") & set(block)


def test_the_policy_allows_the_page_alone(place: Place) -> None:
    text = (place.folder / "both.html").read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    script = text.rsplit("<script>", 1)[1].split("</script>")[0]
    style = text.split("<style>")[1].split("</style>")[0]
    for part in (script, style):
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy[1]
    assert "unsafe" not in policy[1]
    assert "default-src 'none'" in policy[1]
    # the namespace of SVG is a name, not an address
    addresses = set(re.findall(r"https?://[^\"'\s]+", text.split('id="data">')[0] + script))
    assert addresses <= {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_are_null(value: float) -> None:
    assert data_of(page({"a": [value, 1.5], "\ud800": "\ud800"})) == {"a": [None, 1.5], "\ud800": "\ud800"}  # fmt: skip


def test_the_command_says_what_is_wrong(place: Place, tmp_path: Path) -> None:
    wrong = tmp_path / "bench.json"
    wrong.write_text("{}")
    other = tmp_path / "other.onnx"
    other.write_bytes(b"\x08\x08")
    cases = (
        (("report", "hostile.onnx", "--no-run"), 1, "hostile.onnx"),
        (("report", "nothing.fsl"), 1, "F501"),
        (("report", "hostile.fsl", "-o", "x.fsl"), 2, "html"),
        (("report", *["hostile.fsl"] * 3), 2, "two"),
        (("report", "hostile.fsl", "--bench", str(wrong), "--no-run"), 1, "F510"),
        (("report", "hostile.fsl", "--model", str(other), "--no-run"), 1, "F109"),
    )
    for arguments, code, words in cases:
        done = place.fissile(*arguments)
        assert done.returncode == code, (arguments, done.stderr)
        assert words in done.stderr
        assert "Traceback" not in done.stderr


def test_without_running_there_are_no_times(place: Place) -> None:
    done = place.fissile("report", "hostile.fsl", "--no-run", "--json", "-o", "still.html")
    assert done.returncode == 0
    answer = json.loads(done.stdout)
    assert answer["kernels"] == [len(place.document("still.html")["artifacts"][0]["record"]["kernels"])]  # fmt: skip
    assert answer["bytes"] < 400_000
    assert "runs" not in place.document("still.html")["artifacts"][0]
