"""The tuning part of report.json: what is written is what is read."""

import json

from fissile.runtime.report import (
    KEY,
    Alternative,
    KernelRow,
    Standing,
    Tuning,
    WholeRow,
    document,
    tuning_of,
)


def test_the_report_survives_json() -> None:
    other = Alternative("conv (a)", "tiled", ("conv", "add"), None, 1e-6, 2e-7)
    kernels = (
        KernelRow(0, "conv (a +1)", "tiled", 1e-6, 2e-6, (2e-6, 3e-6), (), (other,)),
        KernelRow(None, "foreign (b)", "foreign", 0.0, None, (), (), ()),
    )
    whole = (WholeRow("untuned", None, 2.0, 2.1, 1.0, 1.0, 1.0, False),)
    tuning = Tuning(
        "cpu", 2, "10:00", 3.5, {"n": 4}, (Standing(1, 0.5, 3, 2.0, 1.0, 1.0),), kernels, whole,
        {"too large": 3}, {"conv (c)": "crashed"},
    )  # fmt: skip
    text = json.loads(json.dumps({KEY: document(tuning) | {"added later": 1}}))
    assert tuning_of(text) == tuning
    assert tuning_of({}) is None
