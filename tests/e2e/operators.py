"""Every operator with a native definition, with several settings each, on inputs whose extents are free.

A row is an operator, its inputs as text, and attributes. An input is `name kind extents..`: a kind is f, d (floats),
i, j, B, s (int64, int32, uint8, int8), b (bool), p (positive floats), or @e (int64 indices into an axis of extent e);
`name = 1 2` is a constant of int64, `=f` of floats, `=.` a scalar, `name !f 4 3` a drawn constant, `-` an absent input.
Letters are free extents, each drawn from 0 to 5; a number is a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One model of one operator."""

    op: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    outputs: int = 1
    opset: int = 18
    domain: str = ""

    def __str__(self) -> str:
        attributes = ", ".join(f"{k}={v}" for k, v in self.attributes.items())
        return f"{self.op}({'; '.join(self.inputs)}; {attributes}) opset {self.opset}"


ROWS: list[Row] = []


def row(op: str, *inputs: str, out: int = 1, opset: int = 18, **attributes: Any) -> None:
    """Add a model."""
    ROWS.append(Row(op, inputs, attributes, out, opset))


# ---------------------------------------------------------------- elementwise

for _op in (
    "Abs", "Acos", "Asin", "Asinh", "Atan", "Ceil", "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor", "HardSigmoid",
    "HardSwish", "Identity", "IsNaN", "LeakyRelu", "Neg", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Sinh",
    "Softplus", "Softsign", "Tan", "Tanh", "ThresholdedRelu", "Celu", "IsInf", "Mish", "Shrink",
):  # fmt: skip
    row(_op, "x f n m")
for _op in ("Acosh", "Atanh", "Log", "Reciprocal", "Sqrt"):
    row(_op, "x p n m")
row("Gelu", "x f n m", opset=20)
row("Gelu", "x f n m", opset=20, approximate="tanh")
row("Swish", "x f n", opset=24)
row("Not", "x b n m")
row("BitwiseNot", "x i n m")
for _op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Mean", "Sum", "Pow", "PRelu", "Mod"):
    row(_op, "x p n m", "y p n m", **({"fmod": 1} if _op == "Mod" else {}))
    row(_op, "x p n m", "y p 1 m", **({"fmod": 1} if _op == "Mod" else {}))
    row(_op, "x p n m", "y p 3 1", **({"fmod": 1} if _op == "Mod" else {}))
row("Add", "x f n m", "y f p q")
row("Mul", "x f n 1", "y f m")
row("Where", "c b n", "x f m 1", "y f n")
row("Max", "x f n", "y f n", "z f 1")
row("Mod", "x i n m", "y i m")
row("Div", "x i n", "k =. 3")
row("PRelu", "x f n c h", "s f c 1")
for _op in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"):
    row(_op, "x i n m", "y i m")
for _op in ("And", "Or", "Xor"):
    row(_op, "x b n m", "y b m")
for _op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
    row(_op, "x j n m", "y j m")
    row(_op, "x B n", "y B 1")
row("BitShift", "x B n m", "y B m", direction="LEFT")
row("BitShift", "x B n m", "y B n 1", direction="RIGHT")
row("Cast", "x f n m", to=7)
row("Cast", "x i n m", to=1)
row("CastLike", "x i n", "y f m", opset=19)
row("Clip", "x f n m", "a =.f -0.5", "b =.f 0.5")
row("Clip", "x f n m", "a f", "b f")
row("Clip", "x f n", opset=10, min=-0.5, max=0.5)
row("Dropout", "x f n m", out=2)
row("QuantizeLinear", "x f n c m", "s p c", "z B c")
row("QuantizeLinear", "x f n m", "s p", axis=0)
row("DequantizeLinear", "x B n c m", "s p c", "z B c")
row("DynamicQuantizeLinear", "x f n m", out=3)

# ---------------------------------------------------------------- shapes

row("Reshape", "x f n 6", "s = -1 3")
row("Reshape", "x f n m 2", "s = 0 -1")
row("Reshape", "x f n m", "s = 0 0 1")
row("Reshape", "x f n m", "s = -1")
row("Reshape", "x f n m", "s = 2 -1")
row("Flatten", "x f n m k", axis=0)
row("Flatten", "x f n m k", axis=2)
row("Flatten", "x f n m k", axis=-1)
row("Transpose", "x f n m k", perm=[2, 0, 1])
row("Transpose", "x f n m")
row("Squeeze", "x f n 1 m", "a = 1")
row("Squeeze", "x f n m", "a = -1")
row("Squeeze", "x f n m", "a = 0 1")
row("Squeeze", "x f 1 n m")
row("Squeeze", "x f n m", opset=11, axes=[0])
row("Unsqueeze", "x f n m", "a = 0 -1")
row("Unsqueeze", "x f n", opset=11, axes=[1])
row("Concat", "x f n m", "y f k m", axis=0)
row("Concat", "x f n m", "y f n k", "z f n 2", axis=-1)
row("Concat", "x f n m", "y f m n", axis=1)
row("Split", "x f n m", "s = 1 2", out=2)
row("Split", "x f n m", "s = 0 3 1", out=3, axis=1)
row("Split", "x f n m", out=2, opset=13)
row("Split", "x f n m", out=3, opset=13, axis=-1)
row("Split", "x f n m", out=2, num_outputs=2)
row("Split", "x f n m", out=3, axis=1, num_outputs=3)
row("Split", "x f n m", out=2, opset=11, split=[2, 1])
row("Expand", "x f n 1", "s = 3 4")
row("Expand", "x f n", "s = 2 1")
row("Expand", "x f n m", "s = 1 5")
row("Tile", "x f n m", "r = 2 3")
row("Tile", "x f n m", "r = 0 2")
row("Shape", "x f n m k")
row("Shape", "x f n m k", start=1, end=-1)
row("Size", "x f n m")
row("ConstantOfShape", "s = 3 0 2")
row("EyeLike", "x f n m", k=1)
row("EyeLike", "x f n m", k=-2)
row("Trilu", "x f n m k", "d =. 0")
row("Trilu", "x f n m", "d =. 2", upper=0)
row("Trilu", "x f n m", "d =. -3")
row("Trilu", "x f n m", "d =. 9", upper=0)
row("DepthToSpace", "x f n c h w", blocksize=2)
row("DepthToSpace", "x f n c h w", blocksize=2, mode="CRD")
row("SpaceToDepth", "x f n c h w", blocksize=2)
row("CenterCropPad", "x f n m", "s = 3 2")
row("CenterCropPad", "x f n m", "s = 4", axes=[1])

# ---------------------------------------------------------------- slices and borders

for _s, _e, _step in (
    (1, 3, 1), (0, 9, 2), (-2, 9, 1), (-9, -1, 1), (3, 0, -1), (-1, -9, -2), (9, -9, -1), (2, 2, 1),
):  # fmt: skip
    row("Slice", "x f n m", f"s = {_s}", f"e = {_e}", "a = 0", f"t = {_step}")
row("Slice", "x f n m", "s = 1 -1", "e = 2147483647 -2147483648", "a = 1 0", "t = 1 -1")
row("Slice", "x f n m", "s = 0 1", "e = -1 9")
row("Slice", "x f n m", opset=9, starts=[1], ends=[9], axes=[1])
for _mode in ("constant", "reflect", "edge", "wrap"):
    for _pads in ("0 1 0 1", "2 0 0 3", "0 4 1 4", "0 0 0 0"):
        row("Pad", "x f n m", f"p = {_pads}", opset=19, mode=_mode)
    row("Pad", "x f n m", "p = -1 0 0 -1", opset=19, mode=_mode)
    row("Pad", "x f n m", "p = -1 1 2 -2", opset=19, mode=_mode)
row("Pad", "x f n m", "p = 1 1 1 1", "v =.f 2.5", opset=13)
row("Pad", "x f n m", "p = 3 3", "-", "a = 1", mode="reflect")
row("Pad", "x f n m", opset=10, pads=[1, 2, 1, 0], mode="reflect")
row("Pad", "x f n m", opset=10, pads=[1, 2, 1, 0], value=1.5)

# ---------------------------------------------------------------- indices

for _k in (0, 1, 4, -1, -4):
    row("Gather", "x f n m", f"i =. {_k}")
    row("Gather", "x f n m", f"i = {_k}", axis=1)
row("Gather", "x f n m", "i @n k")
row("Gather", "x f n m", "i @m k 2", axis=1)
row("Gather", "x f n m", "i @n")
row("Gather", "x f 4 n", "i @4 k")
row("GatherElements", "x f n m", "i @n n m")
row("GatherElements", "x f n m", "i @m k 2", axis=1)
row("GatherElements", "x f n m", "i @n k l")
row("GatherElements", "x f n m", "i = 0 1")
row("GatherND", "x f n m", "i @n k 1")
row("GatherND", "x f n n k", "i @n m 2")
row("GatherND", "x f b n m", "i @n b 1", batch_dims=1)
row("GatherND", "x f b n m", "i @n c k 1", batch_dims=1)
for _red in ("none", "add", "mul", "max", "min"):
    row("ScatterElements", "x f n m", "i @n k m", "u f k m", reduction=_red)
    row("ScatterND", "x f n m", "i @n k 1", "u f k m", reduction=_red)
row("ScatterElements", "x f n m", "i @m n k", "u f n k", axis=1)
row("ScatterElements", "x f n m", "i @n k l", "u f k l")
row("ScatterElements", "x f n m", "i @n k m", "u f l m")
row("Scatter", "x f n m", "i @n k m", "u f k m", opset=10)
row("ScatterND", "x f n n k", "i @n m 2", "u f m k")
row("ScatterND", "x f n m", "i @n k 1", "u f l m")
row("Gather", "x f n m", "i !i 2 2")
row("GatherElements", "x f n m", "i !i 2 3")
row("GatherElements", "x f n m", "i !i 2 2", axis=1)
row("GatherND", "x f n m", "i !i 3 1")
row("GatherND", "x f n m", "i !i 2 2")
row("ScatterElements", "x f n m", "i !i 2 2", "u f 2 2")
row("ScatterElements", "x f n m", "i !i 2 3", "u f 2 3", axis=1, reduction="add")
row("ScatterND", "x f n m", "i !i 3 1", "u f 3 m", reduction="add")
row("ScatterND", "x f n m", "i !i 2 2", "u f 2")
row("OneHot", "i !i 6", "d =. 3", "v f 2")
row("OneHot", "i @3 n", "d =. 3", "v f 2")
row("OneHot", "i @4 n m", "d =. 4", "v f 2", axis=0)
row("OneHot", "i @3 n", "d =. 3", "v f k")
row("TopK", "x f n m", "k = 1", out=2)
row("TopK", "x f n m", "k = 3", out=2, axis=0, largest=0)
row("TopK", "x f n m", "k = 0", out=2)
row("TopK", "x f n m", "k = 5", out=2, axis=1)
row("Compress", "x f n m", "c =b 0 1 1 0 1", axis=0)
row("Compress", "x f n m", "c =b 1 0 1 1 1 0 1")
row("Compress", "x f n m", "c =b 0 1 0", axis=-1)
row("ReverseSequence", "x f t b k", "l +t b", time_axis=0, batch_axis=1)
row("ReverseSequence", "x f b t", "l +t b", time_axis=1, batch_axis=0)
row("ReverseSequence", "x f t b", "l +t c", time_axis=0, batch_axis=1)
row("ReverseSequence", "x f t b", "l = 3 1", time_axis=0, batch_axis=1)

# ---------------------------------------------------------------- reductions

for _op in (
    "ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceSumSquare",
):  # fmt: skip
    row(_op, "x p n m", "a = 1")
    row(_op, "x p n m k", "a = 0 -1", keepdims=0)
    row(_op, "x p n m", keepdims=0)
row("ReduceSum", "x f n m", "a = ", noop_with_empty_axes=1)
row("ReduceSum", "x i n m", "a = 0")
row("ReduceMax", "x i n m", "a = 0", opset=20)
row("ReduceMax", "x b n m", "a = 0", opset=20)
row("ReduceMin", "x B n m", "a = 1", opset=20)
row("ReduceMean", "x f n m", opset=13, axes=[0])
for _op in ("ArgMax", "ArgMin"):
    row(_op, "x f n m", axis=0)
    row(_op, "x f n m", axis=-1, keepdims=0, select_last_index=1)
for _op in ("Softmax", "LogSoftmax", "Hardmax"):
    row(_op, "x f n m k", axis=1)
    row(_op, "x f n m", axis=-1)
    row(_op, "x f n m k", opset=11, axis=1)
    row(_op, "x f n m k", opset=11, axis=2)
for _op, _opset in (("CumSum", 18), ("CumProd", 26)):
    for _exclusive, _reverse in ((0, 0), (1, 0), (0, 1), (1, 1)):
        row(_op, "x f n m", "a =. 0", opset=_opset, exclusive=_exclusive, reverse=_reverse)
    row(_op, "x f n m", "a =. -1", opset=_opset)

# ---------------------------------------------------------------- products

row("MatMul", "x f n m", "y f m k")
row("MatMul", "x f n m", "y f k l")
row("MatMul", "x f b n m", "y f b m k")
row("MatMul", "x f b n m", "y f m k")
row("MatMul", "x f 1 n m", "y f b m k")
row("MatMul", "x f n", "y f n")
row("MatMul", "x f b n m", "y f m")
row("MatMul", "x f n m", "w !f 4 3")
row("MatMul", "x i n m", "y i m k")
row("MatMul", "x f b n 300", "w !f 2 300 3")
row("Gemm", "x f n m", "y f m k", "c f k", alpha=0.5, beta=2.0)
row("Gemm", "x f m n", "y f k m", "c f n 1", transA=1, transB=1)
row("Gemm", "x f n m", "y f m k", "c f")
row("MatMulInteger", "x B n m", "y B m k", "a =.B 2", "b =.B 1")
row("QLinearMatMul", "x B n m", "s =.f 0.5", "z =.B 3", "y B m k", "t =.f 0.25", "u =.B 1", "v =.f 2", "o =.B 5")
row("Einsum", "x f n m", "y f m k", equation="ij,jk->ik")
row("Einsum", "x f b n m", "y f b k m", equation="bij,bkj->bik")
row("Einsum", "x f n m", equation="ij->j")
row("Einsum", "x f n m", equation="ij->ji")
row("Einsum", "x f n", "y f m", equation="i,j->ij")
row("Einsum", "x f n m", "y f n m", equation="ij,ij->")

# ---------------------------------------------------------------- windows

row("Conv", "x f n 2 h w", "w !f 3 2 3 3")
row("Conv", "x f n 2 h w", "w !f 3 2 3 2", "b !f 3", pads=[1, 0, 1, 1], strides=[2, 1])
row("Conv", "x f n 2 h w", "w !f 4 1 3 3", group=2, dilations=[2, 1], pads=[2, 1, 2, 1])
row("Conv", "x f n 3 h w", "w !f 3 1 2 2", group=3, auto_pad="SAME_UPPER", strides=[2, 2])
row("Conv", "x f n 2 h w", "w !f 3 2 3 3", auto_pad="SAME_LOWER")
row("Conv", "x f n 2 h w", "w !f 3 2 2 2", auto_pad="VALID", strides=[3, 3])
row("Conv", "x f n 2 h", "w !f 3 2 1")
row("Conv", "x f n 2 h", "w !f 3 2 4", strides=[2])
row("Conv", "x f n c h", "w f k c 2")
row("Conv", "x f n 2 h w d", "w !f 2 2 2 2 2")
row("ConvInteger", "x B n 2 h w", "w !B 3 2 2 2", "a =.B 2")
row("QLinearConv", "x B n 2 h w", "s =.f 0.5", "z =.B 3", "w !B 3 2 2 2", "t =.f 0.25", "u =.B 1", "v =.f 2", "o =.B 5")
row("ConvTranspose", "x f n 2 h w", "w !f 2 3 3 3")
row("ConvTranspose", "x f n 2 h w", "w !f 2 3 2 2", "b !f 3", strides=[2, 2])
row("ConvTranspose", "x f n 2 h w", "w !f 2 3 3 3", strides=[2, 1], pads=[1, 1, 1, 1], output_padding=[1, 0])
row("ConvTranspose", "x f n 4 h", "w !f 4 1 3", group=2, dilations=[2])
row("ConvTranspose", "x f n 2 h", "w !f 2 3 2", pads=[2, 2])
for _op in ("MaxPool", "AveragePool", "LpPool"):
    _two = {"out": 2} if _op == "MaxPool" else {}
    row(_op, "x f n c h w", kernel_shape=[2, 3])
    row(_op, "x f n c h", kernel_shape=[3], strides=[2], pads=[1, 1])
    row(_op, "x f n c h", kernel_shape=[2], strides=[3], ceil_mode=1, opset=18 if _op != "AveragePool" else 19)
    row(_op, "x f n c h w", kernel_shape=[3, 2], auto_pad="SAME_UPPER", strides=[2, 1])
    row(_op, "x f n c h", kernel_shape=[2], auto_pad="VALID", strides=[2])
    row(_op, "x f n c h", kernel_shape=[3], dilations=[2], opset=19 if _op == "AveragePool" else 18)
row("MaxPool", "x f n c h w", kernel_shape=[2, 2], pads=[0, 1, 1, 0], out=2)
row("MaxPool", "x f n c h", kernel_shape=[3], strides=[2], ceil_mode=1, pads=[1, 1], out=2)
row("AveragePool", "x f n c h", kernel_shape=[3], pads=[1, 1], count_include_pad=1)
row("AveragePool", "x f n c h", kernel_shape=[3], strides=[2], ceil_mode=1, pads=[1, 1], count_include_pad=1, opset=19)
for _op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
    row(_op, "x f n c h w")
    row(_op, "x f n c h")
row("LRN", "x f n c h w", size=3)
row("LRN", "x f n c h", size=5, alpha=0.5, beta=0.5, bias=2.0)

# ---------------------------------------------------------------- resizing

_AXES = "x f 1 2 h w"
for _mode in ("nearest", "linear", "cubic"):
    for _where in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"):
        _opset = 19 if _where == "half_pixel_symmetric" else 18
        row("Resize", _AXES, "-", "s =f 1 1 2 3", opset=_opset, mode=_mode, coordinate_transformation_mode=_where)
    row("Resize", _AXES, "-", "s =f 1 1 0.5 0.75", mode=_mode, coordinate_transformation_mode="asymmetric")
    row("Resize", _AXES, "-", "-", "z = 1 2 4 3", mode=_mode)
    row("Resize", _AXES, "-", "-", "z = 3 1", axes=[2, 3], mode=_mode, coordinate_transformation_mode="align_corners")
for _round in ("round_prefer_ceil", "floor", "ceil"):
    row("Resize", _AXES, "-", "s =f 1 1 1.5 2", nearest_mode=_round)
row("Resize", "x f n c h w", "-", "s =f 1 1 2 2")
row("Resize", _AXES, "s =f 1 1 2 2", opset=10)
row("Upsample", _AXES, "s =f 1 1 2 2", opset=9)
row("Upsample", _AXES, "s =f 1 1 2 3", opset=9, mode="linear")

# ---------------------------------------------------------------- normalizations

row("BatchNormalization", "x f n 3 h w", "s p 3", "b f 3", "m f 3", "v p 3")
row("BatchNormalization", "x f n c h", "s p c", "b f c", "m f c", "v p c")
row("BatchNormalization", "x f n c", "s p c", "b f c", "m f c", "v p c")
row("InstanceNormalization", "x f n c h w", "s p c", "b f c")
row("GroupNormalization", "x f n 4 h", "s p 4", "b f 4", num_groups=2, opset=21)
row("GroupNormalization", "x f n c h", "s p c", "b f c", num_groups=2, opset=21)
row("LayerNormalization", "x f n m", "s p m", "b f m")
row("LayerNormalization", "x f n m k", "s p m k", axis=1)
row("LayerNormalization", "x f n m", "s p m", out=3)
row("RMSNormalization", "x f n m", "s p m", opset=23)
row("MeanVarianceNormalization", "x f n c h w")
row("LpNormalization", "x f n m", axis=1, p=2)
row("LpNormalization", "x f n m", axis=0, p=1)

# ---------------------------------------------------------------- defined by other operators

row("Attention", "q f b h n 4", "k f b h m 4", "v f b h m 3", opset=23)
row("Attention", "q f b h n 4", "k f b h m 4", "v f b h m 3", opset=23, is_causal=1)
row("SoftmaxCrossEntropyLoss", "x f n 3", "t ^3 n")
row("SoftmaxCrossEntropyLoss", "x f n 3", "t ^3 n", reduction="none")
row("NegativeLogLikelihoodLoss", "x f n 3 h", "t ^3 n h", reduction="sum")
row("NegativeLogLikelihoodLoss", "x f n c", "t ^c n", reduction="none")
row("RotaryEmbedding", "x f b 2 n 4", "c f b n 2", "s f b n 2", opset=23)
row("AffineGrid", "t f n 2 3", "z = 2 1 3 4", opset=20)
row("HannWindow", "k =. 5", opset=17)
