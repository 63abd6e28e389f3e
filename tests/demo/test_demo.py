"""`fissile demo`: its network is valid, and its outcome says when answers differ."""

import json

import onnx
import pytest

from fissile import cli, demo


def test_the_network_is_valid() -> None:
    onnx.checker.check_model(demo.network(), full_check=True)


@pytest.mark.parametrize(("difference", "agrees"), [(1e-6, True), (1e-3, False)])
def test_the_outcome_speaks_up(difference: float, agrees: bool) -> None:
    row = demo.Row((1, 3, 8, 8), 1e-3, 2e-3, difference)
    outcome = demo.Outcome("onnxruntime", 1.0, 1000, (row,))
    assert outcome.agrees is agrees
    assert ("NOT all within" in outcome.text()) is not agrees


def test_the_demo_agrees(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        cli.main(["demo", "--json"])
    assert leaving.value.code == 0
    document = json.loads(capsys.readouterr().out)
    assert document["agrees"]
    assert len(document["rows"]) == 3
