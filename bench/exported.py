"""Networks whose exports are hard on a compiler: free sizes, extents as expressions, operators that find boxes.

Weights are random, batch norms as after some training: their statistics are those of the example, so that no signal
dies on the way. `h32` stands for a height of 32 * h32 pixels: where a network halves its maps and joins them again,
torch.export wants to know that they are of one size.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from network import First, Network
from torch import Tensor, nn
from torch.export import Dim
from yolov8 import YOLOv8


def _settled(module: nn.Module, *example: Any) -> nn.Module:
    """The module in evaluation mode, the statistics of its batch norms those of the example."""
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    module.eval()
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    if norms:
        with torch.no_grad():
            module(*example)
    return module.eval()


def _of_images(module: nn.Module, multiple: int, height: int, width: int) -> Network:
    """A network of images of any batch and of sizes that are multiples of `multiple`."""
    image = torch.randn(2, 3, multiple * height, multiple * width)
    sides = (multiple * Dim(f"{side}{multiple}") for side in "hw")
    free = {"x": {0: "batch", **dict(zip((2, 3), sides, strict=True))}}
    return Network(_settled(module, image), {"x": image}, free)


def _timm(name: str, **settings: Any) -> nn.Module:
    return import_module("timm").create_model(name, pretrained=False, **settings)


def _vit() -> Network:
    module = import_module("torchvision.models").vit_b_16(weights=None)
    # as published the head is zero at first
    nn.init.normal_(module.heads.head.weight, std=0.02)
    return Network(module, {"x": torch.randn(2, 3, 224, 224)}, {"x": {0: "batch"}})


def _vit_of_any_size() -> Network:
    return _of_images(_timm("vit_base_patch16_224", dynamic_img_size=True), 16, 15, 16)


class _Detr(nn.Module):
    """Class scores [batch, 100, classes + 1] and boxes [batch, 100, 4] in shares of the image."""

    def __init__(self) -> None:
        super().__init__()
        library = import_module("transformers")
        backbone = library.ResNetConfig(out_features=["stage4"])
        settings = library.DetrConfig(backbone_config=backbone, num_labels=91)
        self.model = library.DetrForObjectDetection(settings)

    def forward(self, pixels: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        found = self.model(pixel_values=pixels, pixel_mask=mask, return_dict=True)
        return found.logits, found.pred_boxes


def _detr(by_script: bool) -> Network:
    pixels, mask = torch.randn(2, 3, 320, 384), torch.ones(2, 320, 384, dtype=torch.int64)
    mask[1, 250:] = 0
    mask[1, :, 300:] = 0
    free = {"pixels": {0: "batch", 2: "h", 3: "w"}, "mask": {0: "batch", 1: "h", 2: "w"}}
    inputs = {"pixels": pixels, "mask": mask}
    return Network(_settled(_Detr(), pixels, mask), inputs, free, by_script)


def _wav2vec2() -> Network:
    library = import_module("transformers")
    module = First(library.Wav2Vec2ForCTC(library.Wav2Vec2Config()), ("input_values",))
    return Network(
        module, {"speech": torch.randn(2, 16000)}, {"speech": {0: "batch", 1: "samples"}}
    )


def _unet() -> Network:
    made = import_module("diffusers").UNet2DConditionModel(
        sample_size=64,
        block_out_channels=(64, 128, 256),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=256,
        attention_head_dim=4,
    )
    inputs = {
        "sample": torch.randn(2, 4, 32, 40),
        "timestep": torch.tensor([10, 500]),
        "context": torch.randn(2, 77, 256),
    }
    batch, sides = {0: "batch"}, {2: 4 * Dim("h4"), 3: 4 * Dim("w4")}
    free = {"sample": batch | sides, "timestep": batch, "context": batch}
    names = ("sample", "timestep", "encoder_hidden_states")
    return Network(First(made, names), inputs, free)


class _Boxes(nn.Module):
    """A detector of torchvision for one image [3, h, w]: boxes, labels, scores of what it found."""

    def __init__(self, name: str, spread: float, **settings: Any) -> None:
        super().__init__()
        detection = import_module("torchvision.models.detection")
        self.model = getattr(detection, name)(weights=None, weights_backbone=None, **settings)
        with torch.no_grad():  # scores far enough apart that something is found
            for part, weight in self.model.named_parameters():
                if "cls_logits" in part or "cls_score" in part or "classification_head" in part:
                    weight.mul_(spread)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found = self.model([image])[0]
        return found["boxes"], found["labels"], found["scores"]


def _boxes(name: str, spread: float, **settings: Any) -> Network:
    image = torch.rand(3, 320, 384)
    module = _Boxes(name, spread, **settings)
    _settled(module.model, [image, torch.rand(3, 320, 320)])  # two: some maps are one pixel
    return Network(module, {"image": image}, {"image": {1: "h", 2: "w"}}, by_script=True)


EXPORTS: dict[str, Callable[[], Network]] = {
    "vit_b16_dynamo": _vit,
    "vit_b16_size_dynamo": _vit_of_any_size,
    "yolov8n_dynamo": lambda: _of_images(YOLOv8(), 32, 10, 11),
    "detr_dynamo": lambda: _detr(by_script=False),
    "detr_script": lambda: _detr(by_script=True),
    "xcit_dynamo": lambda: _of_images(_timm("xcit_nano_12_p16_224"), 16, 14, 15),
    "edgenext_dynamo": lambda: _of_images(_timm("edgenext_small"), 32, 7, 8),
    "wav2vec2_dynamo": _wav2vec2,
    "unet_dynamo": _unet,
    "fasterrcnn": lambda: _boxes("fasterrcnn_mobilenet_v3_large_320_fpn", 20.0),
    "ssdlite": lambda: _boxes("ssdlite320_mobilenet_v3_large", 2.0, detections_per_img=20),
}
