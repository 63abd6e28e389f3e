"""The page of `fissile report` in headless Chromium: every view, mouse and keys, narrow, dark, printed.

In: the page about two artifacts of a model whose names are markup. Out: what a user sees. Skipped by name where no
Chromium is installed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fissile.report.page import page
from tests.report.browser import CHROMIUM, Browser
from tests.report.pages import EVIL, Place

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt install chromium")

VIEWS = ["summary", "where", "kernel", "graph", "changed", "proof", "compare"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as found:
        yield found


@pytest.fixture
def opened(browser: Browser, place: Place) -> Browser:
    browser.open(place.folder / "both.html")
    return browser


def _text(browser: Browser, view: str) -> str:
    found: str = browser.ask(f"document.getElementById('{view}').innerText")
    return found


def _click(browser: Browser, selector: str) -> None:
    event = "new MouseEvent('click', {bubbles: true})"
    browser.ask(f"document.querySelector({json.dumps(selector)}).dispatchEvent({event})")
    browser.ask("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(1))))")


def _focused(browser: Browser) -> str:
    found: str = browser.ask("document.activeElement.dataset.key || document.activeElement.tagName")
    return found


def _chosen(browser: Browser) -> str:
    chip = "document.getElementById('chip')"
    found: str = browser.ask(f"{chip}.hidden ? '' : {chip}.innerText")
    return found


def _enter(browser: Browser, selector: str, value: str, event: str) -> None:
    """A value given to a field, as if it had been typed or picked."""
    body = f"s.value = {json.dumps(value)}; s.dispatchEvent(new Event('{event}'))"
    browser.ask(f"(s => {{ {body} }})(document.querySelector({json.dumps(selector)}))")


def _rows(browser: Browser, cell: int) -> list[float]:
    """The numbers in a column of the table of kernels."""
    rows = "[...document.querySelectorAll('#where tbody tr')]"
    found: list[float] = browser.ask(f"{rows}.map(r => parseFloat(r.cells[{cell}].innerText))")
    return found


def test_all_views_are_there_and_nothing_is_loaded(opened: Browser) -> None:
    assert opened.ask("[...document.querySelectorAll('section')].map(s => s.id)") == VIEWS
    assert opened.errors == []
    assert [r for r in opened.requests if not r.startswith("file:")] == []
    assert len(opened.requests) == 1
    assert "hostile.onnx" in opened.ask("document.title")
    assert "kernels of 20 operators" in _text(opened, "summary")


def test_hostile_names_are_text(opened: Browser) -> None:
    _click(opened, "[data-key='group-depth-operators']")
    assert opened.ask("document.querySelectorAll('img').length") == 0
    names = opened.ask("[...document.querySelectorAll('.node title')].map(t => t.textContent)")
    assert any(EVIL in name for name in names)
    assert opened.ask("document.title") != "1"


def test_a_click_selects_a_kernel_everywhere(opened: Browser) -> None:
    _click(opened, ".tile[data-kernel='3']")
    assert "kernel 3:" in _chosen(opened)
    assert "kernel 3:" in _text(opened, "kernel")
    assert opened.ask("document.querySelectorAll('#where tr.on').length") == 1
    assert opened.ask("document.querySelectorAll('#compare tbody tr').length") == 1
    dim = "document.querySelectorAll('#graph .node.dim').length"
    assert opened.ask(dim) > 0
    opened.press("Escape")
    assert _chosen(opened) == ""
    assert opened.ask(dim) == 0


def test_the_keyboard_does_the_same(opened: Browser) -> None:
    opened.ask("document.querySelector('.tile[tabindex=\"0\"]').focus()")
    first = _focused(opened)
    opened.press("ArrowRight")
    second = _focused(opened)
    assert first != second
    opened.press("Enter")
    assert f"kernel {second.removeprefix('tile-')}:" in _chosen(opened)
    assert _focused(opened) == second  # drawing anew keeps the focus
    opened.ask("document.querySelector('[data-key=\"after\"]').focus()")
    before = _chosen(opened)
    opened.press("Enter")
    assert _chosen(opened) != before
    assert _focused(opened) == "after"
    style = "getComputedStyle(document.activeElement).outlineStyle"
    assert opened.ask(style) == "solid"


def test_order_of_the_table_and_the_slider(opened: Browser) -> None:
    _enter(opened, '[data-key="choice-sort by"]', "order", "change")
    order = _rows(opened, 0)
    assert order == sorted(order)
    _enter(opened, '[data-key="choice-sort by"]', "waste", "change")
    assert sorted(_rows(opened, 0)) == order
    _enter(opened, "[data-key=least]", "4", "input")
    assert all(ratio >= 4 for ratio in _rows(opened, 6))


def test_three_depths_blocks_and_search(opened: Browser) -> None:
    count = "document.querySelectorAll('#graph .node').length"
    assert opened.ask("document.querySelector('#graph .times').textContent") == "×4"
    folded = opened.ask(count)
    _click(opened, "[data-key='fold']")
    assert opened.ask(count) == 20 > folded
    _enter(opened, "[data-key=search]", "BLOCK2/", "input")
    assert opened.ask("document.querySelectorAll('#graph .found').length") == 3
    for depth in ("primitives", "kernels"):
        _click(opened, f"[data-key='group-depth-{depth}']")
        assert opened.ask(count) >= 8
    box = "document.querySelector('#graph svg').getAttribute('viewBox')"
    before = opened.ask(box)
    opened.ask("document.querySelector('#graph [data-key=canvas]').focus()")
    opened.press("ArrowDown")
    moved = opened.ask(box)
    opened.press("+")
    assert len({before, moved, opened.ask(box)}) == 3


def test_rules_and_reasons(opened: Browser) -> None:
    assert "merge_transposes" in _text(opened, "changed")
    _click(opened, "#changed tbody tr.row")
    assert "--disable" in _text(opened, "changed")
    _click(opened, ".tile[data-kernel='0']")
    assert "two linear primitives" in _text(opened, "kernel")
    assert "def k" in opened.ask("document.querySelector('#kernel details pre').textContent")


@pytest.mark.parametrize("dark", [False, True])
def test_narrow_and_dark(browser: Browser, place: Place, dark: bool) -> None:
    browser.open(place.folder / "both.html", width=320, height=640, dark=dark)
    assert browser.ask("document.documentElement.scrollWidth") == 320
    shade = browser.ask(
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    )
    assert (max(shade) < 60) == dark
    assert browser.errors == []


def test_it_prints(opened: Browser) -> None:
    opened.call("Emulation.setEmulatedMedia", media="print")
    assert opened.ask("getComputedStyle(document.querySelector('header')).display") == "none"
    assert (
        opened.ask("getComputedStyle(document.querySelector('#where .scroll')).maxHeight") == "none"
    )
    opened.call("Emulation.setEmulatedMedia", media="")
    assert len(opened.call("Page.printToPDF")["data"]) > 10_000


def test_copy_as_text(opened: Browser) -> None:
    opened.ask(
        "navigator.clipboard.writeText = t => { window.copied = t; return Promise.resolve(); }"
    )
    _click(opened, "#summary button")
    assert "fissile report: hostile.fsl" in opened.ask("window.copied")


def _tuned(document: dict[str, Any]) -> dict[str, Any]:
    """The document as it is for a tuned artifact: rounds, samples, alternatives, rejects."""
    kernels = document["artifacts"][0]["record"]["kernels"]
    other = {"label": f"other {EVIL}", "anchor": "rows", "primitives": ["erf"], "seconds": None,
             "bound_seconds": 1e-6, "extra_seconds": 2e-6}  # fmt: skip
    row = {"label": "k", "anchor": "linear", "bound_seconds": 1e-6, "predicted_seconds": 3e-6,
           "samples": [3e-6, 4e-6], "whole_seconds": [5e-6], "alternatives": [other]}  # fmt: skip
    plan = {"predicted_seconds": 1e-4, "p10_seconds": 1e-4, "median_seconds": 2e-4, "ratio": 1.0,
            "ratio_low": 0.9, "ratio_high": 1.1}  # fmt: skip
    rounds = [{"number": n, "seconds": float(n), "measured": 9 * n, "plan_seconds": 1e-4 / n,
               "bound_seconds": 2e-5, "gap": 5.0 / n} for n in (1, 2)]  # fmt: skip
    tuning = {
        "machine": "a machine", "threads": 1, "budget": "10m", "seconds": 9.0, "extents": {"n": 5},
        "rounds": rounds, "kernels": [{**row, "launch": k} for k in range(len(kernels))],
        "whole": [{**plan, "name": "plan 1", "is_kept": True}], "refused": {"two products": 7},
        "rejected": {f"slow {EVIL}": "no answer"},
    }  # fmt: skip
    proof = {"candidates": 40, "measured": 30, "gap": 0.0, "admissible_gap": 2.0, "complete": True,
             "window_gap": 0.0, "untuned_seconds": 2e-3, "measured_seconds": 1e-3}  # fmt: skip
    rival = {"engine": "onnxruntime", "threads": 1, "ratio": 1.5, "p10_seconds": 0.003,
             "verdict": "faster"}  # fmt: skip
    first = document["artifacts"][0]
    manifest = {**first["manifest"], "certificate": proof}
    artifacts = [{**first, "tuning": tuning, "manifest": manifest}]
    return {**document, "artifacts": artifacts, "bench": {"records": [rival]}}


def test_a_tuned_artifact_shows_its_proof(browser: Browser, place: Place, tmp_path: Path) -> None:
    path = tmp_path / "tuned.html"
    path.write_text(page(_tuned(place.document())), encoding="utf-8")
    browser.open(path)
    assert browser.errors == []
    assert "the cheapest plan of these candidates" in _text(browser, "proof")
    assert "two products" in _text(browser, "proof")
    assert "slow" in _text(browser, "proof")
    assert "200 % if nothing is taken for granted" in _text(browser, "proof")
    assert "2.00×" in _text(browser, "summary")
    assert "onnxruntime" in _text(browser, "summary")
    assert "other" in _text(browser, "kernel")
    assert browser.ask("document.querySelector('#compare')") is None
    assert browser.ask("document.querySelectorAll('img').length") == 0


def test_a_run_that_was_cut_short_proves_nothing(browser: Browser, place: Place, tmp_path: Path) -> None:
    path, document = tmp_path / "short.html", _tuned(place.document())
    document["artifacts"][0]["manifest"]["certificate"] |= {"complete": False, "window_gap": None, "gap": 0.25}
    path.write_text(page(document), encoding="utf-8")
    browser.open(path)
    assert "nothing yet: measuring stopped early; gap 25.0 %" in _text(browser, "proof")


def test_a_large_model_stays_small_and_quick(
    browser: Browser, place: Place, tmp_path: Path
) -> None:
    """A thousand operators and as many kernels: under 2 MB; more nodes than can be drawn are a list."""
    document = place.document()
    first = document["artifacts"][0]
    record, run = first["record"], first["runs"][0]
    times = 1 + 1000 // len(record["kernels"])
    kernels = [k for _ in range(times) for k in record["kernels"]]
    samples = {k: v * times for k, v in run.items() if isinstance(v, list) and k != "whole"}
    operators = record["operators"] * (1 + 3300 // len(record["operators"]))
    record = {**record, "kernels": kernels, "operators": operators[:1000]}
    document = {
        **document,
        "artifacts": [{**first, "record": record, "runs": [{**run, **samples}]}],
    }
    text = page(document)
    assert len(text) < 2_000_000
    path = tmp_path / "large.html"
    path.write_text(text, encoding="utf-8")
    browser.open(path)
    assert browser.errors == []
    assert browser.ask("document.querySelectorAll('#where tbody tr').length") == len(kernels)
    many = {**record, "operators": [[row[0], k, []] for k, row in enumerate(operators)]}
    many["texts"] = [*record["texts"], *(f"Type{k}" for k in range(len(operators)))]
    path.write_text(page({**document, "artifacts": [{**first, "record": many}]}), encoding="utf-8")
    browser.open(path)
    assert "too many to draw" in _text(browser, "graph")
    assert browser.errors == []
