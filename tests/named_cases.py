"""Cases of tests/cases that need a word: what is refused and why, and the shapes that some have to be compiled with.

Invariant: a case that becomes right must leave its table; `tests/fission/test_cases.py` and `tests/ort/test_cases.py`
hold the compiler to that.
"""

# Refused: the code of the error, where it comes from, the reason.
REFUSED: dict[str, tuple[str, str]] = {
    "case_327": ("F021", "MatMulNBits: weights of 4 bits are later work"),
    "case_467": ("F021", "DynamicQuantizeLSTM: recurrences are not native yet, and this one has no types in onnx"),
}
# Initializers that calls feed: refused with the name of the option, right with it.
OVERRIDDEN: dict[str, tuple[str, ...]] = {"case_335": ("w",)}
# Right where these dimensions are fixed; `fissile.ort` compiles such models once more by itself, and warns.
FIXED: dict[str, dict[str, int]] = {
    "case_387": {"b": 1},
    "case_519": {"c": 1},
    "case_539": {"b": 1},
    "fault_squeeze_free_b4": {"b": 1},
    "fault_squeeze_free_bc3": {"b": 1, "c": 1},
}
COUNT = 227
