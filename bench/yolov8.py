"""YOLOv8, which no package under a free license builds, for `build_zoo.py`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Module = nn.Module


class Conv(nn.Sequential):
    """Convolution of odd size that keeps or halves the extents, batch norm, SiLU."""

    def __init__(self, before: int, after: int, size: int = 1, stride: int = 1) -> None:
        convolution = nn.Conv2d(before, after, size, stride, size // 2, bias=False)
        super().__init__(convolution, nn.BatchNorm2d(after, eps=1e-3), nn.SiLU())


class Bottleneck(Module):
    """Two 3x3 convolutions; the input is added where `adds`."""

    def __init__(self, channels: int, adds: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(Conv(channels, channels, 3), Conv(channels, channels, 3))
        self.adds = adds

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.adds else self.body(x)


class C2f(Module):
    """Half of the channels through a chain of bottlenecks; every link of the chain is kept."""

    def __init__(self, before: int, after: int, count: int, adds: bool) -> None:
        super().__init__()
        self.inlet = Conv(before, after)
        self.chain = nn.ModuleList(Bottleneck(after // 2, adds) for _ in range(count))
        self.outlet = Conv((2 + count) * after // 2, after)

    def forward(self, x: Tensor) -> Tensor:
        kept = list(self.inlet(x).chunk(2, 1))
        for link in self.chain:
            kept.append(link(kept[-1]))
        return self.outlet(torch.cat(kept, 1))


class Pyramid(Module):
    """Maximum over growing windows (SPPF)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inlet, self.outlet = Conv(channels, channels // 2), Conv(2 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        kept = [self.inlet(x)]
        for _ in range(3):
            kept.append(F.max_pool2d(kept[-1], 5, 1, 2))
        return self.outlet(torch.cat(kept, 1))


class Detect(Module):
    """Boxes (centre, extent, in pixels) and class scores of every cell: [batch, 4 + classes, cells]."""

    BINS = 16

    def __init__(self, channels: tuple[int, ...], classes: int) -> None:
        super().__init__()
        boxes, scores = (
            max(16, channels[0] // 4, 4 * self.BINS),
            max(channels[0], min(classes, 100)),
        )
        self.boxes = nn.ModuleList(
            nn.Sequential(
                Conv(c, boxes, 3), Conv(boxes, boxes, 3), nn.Conv2d(boxes, 4 * self.BINS, 1)
            )
            for c in channels
        )
        self.scores = nn.ModuleList(
            nn.Sequential(
                Conv(c, scores, 3), Conv(scores, scores, 3), nn.Conv2d(scores, classes, 1)
            )
            for c in channels
        )
        self.bins = nn.Conv2d(self.BINS, 1, 1, bias=False).requires_grad_(False)
        self.bins.weight.copy_(torch.arange(float(self.BINS)).view(1, -1, 1, 1))

    def forward(self, maps: list[Tensor]) -> Tensor:
        heads = zip(maps, self.boxes, self.scores, strict=True)
        found = torch.cat([torch.cat([b(x), s(x)], 1).flatten(2) for x, b, s in heads], 2)
        bins, scores = found.split((4 * self.BINS, found.shape[1] - 4 * self.BINS), 1)
        batch, _, cells = bins.shape
        spread = bins.view(batch, 4, self.BINS, cells).transpose(1, 2).softmax(1)
        near, far = self.bins(spread).view(batch, 4, cells).chunk(2, 1)
        points, strides = self.cells(maps)
        low, high = points - near, points + far
        box = torch.cat([(low + high) / 2, high - low], 1) * strides
        return torch.cat([box, scores.sigmoid()], 1)

    def cells(self, maps: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Centres [2, cells] in units of the stride, and the stride of each cell [1, cells]."""
        points, strides = [], []
        for level, x in enumerate(maps):
            height, width = x.shape[-2:]
            down = torch.arange(height, dtype=x.dtype) + 0.5
            right = torch.arange(width, dtype=x.dtype) + 0.5
            y, z = torch.meshgrid(down, right, indexing="ij")
            points.append(torch.stack((z, y), -1).view(-1, 2))
            strides.append(torch.full((height * width, 1), 8.0 * 2**level, dtype=x.dtype))
        return torch.cat(points).T, torch.cat(strides).T


class YOLOv8(Module):
    """YOLOv8 of the smallest width and depth (n): images of multiples of 32 pixels, 80 classes."""

    def __init__(self, classes: int = 80) -> None:
        super().__init__()
        self.to_8 = nn.Sequential(
            Conv(3, 16, 3, 2), Conv(16, 32, 3, 2), C2f(32, 32, 1, True),
            Conv(32, 64, 3, 2), C2f(64, 64, 2, True),
        )  # fmt: skip
        self.to_16 = nn.Sequential(Conv(64, 128, 3, 2), C2f(128, 128, 2, True))
        self.to_32 = nn.Sequential(Conv(128, 256, 3, 2), C2f(256, 256, 1, True), Pyramid(256))
        self.up_16, self.up_8 = C2f(384, 128, 1, False), C2f(192, 64, 1, False)
        self.down_16, self.mix_16 = Conv(64, 64, 3, 2), C2f(192, 128, 1, False)
        self.down_32, self.mix_32 = Conv(128, 128, 3, 2), C2f(384, 256, 1, False)
        self.detect = Detect((64, 128, 256), classes)

    def forward(self, x: Tensor) -> Tensor:
        at_8 = self.to_8(x)
        at_16 = self.to_16(at_8)
        at_32 = self.to_32(at_16)
        mixed = self.up_16(torch.cat([F.interpolate(at_32, scale_factor=2.0), at_16], 1))
        fine = self.up_8(torch.cat([F.interpolate(mixed, scale_factor=2.0), at_8], 1))
        middle = self.mix_16(torch.cat([self.down_16(fine), mixed], 1))
        coarse = self.mix_32(torch.cat([self.down_32(middle), at_32], 1))
        return self.detect([fine, middle, coarse])
