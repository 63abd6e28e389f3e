"""Errors carry code, places, reason and remedy, print in one form and stay natural builtins."""

import pickle

import pytest

from fissile import errors
from fissile.errors import FissileError, Place, did_you_mean

CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, FissileError)]


def test_the_form_of_the_documentation() -> None:
    error = errors.UnsupportedError(
        "F021",
        "2 operators have no native definition",
        where=[
            Place("/post/TopP", "com.acme.TopP(1)", "node 214   input float32[batch,50257]"),
            Place("/post/Decode", "ai.onnx.ml.StringNormalizer(1)", "node 611"),
        ],
        reason="domain com.acme is unknown",
        remedy=["--python-op acme.ops:top_p", "--foreign allow"],
    )
    assert str(error).splitlines() == [
        "error F021: 2 operators have no native definition",
        "  /post/TopP     com.acme.TopP(1)                 node 214   input float32[batch,50257]",
        "  /post/Decode   ai.onnx.ml.StringNormalizer(1)   node 611",
        "  reason: domain com.acme is unknown",
        "  do: --python-op acme.ops:top_p",
        "  or: --foreign allow",
    ]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda c: c.__name__)
def test_every_class_prints_and_travels(kind: type[FissileError]) -> None:
    error = kind("F000", "nothing", where="/a/b", reason="because", remedy="do this")
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(copy) is kind
    assert str(copy) == str(error)
    assert copy.as_dict() == error.as_dict()
    assert str(error).startswith("error F000: nothing\n  /a/b\n")


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.InvalidFeed, ValueError),
        (errors.ModelError, ValueError),
        (errors.UnsupportedError, NotImplementedError),
        (errors.FileMissing, FileNotFoundError),
        (errors.FileAccess, OSError),
        (errors.CompileError, RuntimeError),
    ],
)
def test_classes_are_natural_builtins(kind: type[FissileError], builtin: type[Exception]) -> None:
    with pytest.raises(builtin, match="F999"):
        raise kind("F999", "x")


def test_nearest_name_keeps_the_spelling_of_the_choice() -> None:
    assert did_you_mean("RELU", ["Relu", "Tanh"]) == 'did you mean "Relu"?'
    assert did_you_mean("zzz", ["Relu"]) == ""
    assert did_you_mean("a", []) == ""
