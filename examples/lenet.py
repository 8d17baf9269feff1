"""LeNet with BatchNorm for small images.

See Y. LeCun et al., 1998, and S. Ioffe and C. Szegedy, 2015.
"""

from __future__ import annotations

from mindspore import nn


class LeNet(nn.Cell):
    """Two blocks of convolution, BatchNorm, ReLU and pooling, then two dense layers.

    Args:
        classes: number of classes.
        size: height and width of the images, a multiple of 4.
        channels: numbers of output channels of the two convolutions.
        hidden: width of the first dense layer.

    Inputs:
        image: float32 or float16 [B, 1, size, size].

    Outputs:
        Logits [B, classes].
    """

    def __init__(
        self, classes: int = 10, size: int = 8, channels: tuple[int, int] = (16, 32), hidden: int = 64
    ) -> None:
        super().__init__()
        first, second = channels

        def block(inputs: int, outputs: int) -> list[nn.Cell]:
            convolution = nn.Conv2d(inputs, outputs, 3, pad_mode="same", has_bias=False, weight_init="HeUniform")
            return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2, 2)]

        self.features = nn.SequentialCell([*block(1, first), *block(first, second), nn.Flatten()])
        self.classifier = nn.SequentialCell(
            [nn.Dense(second * (size // 4) ** 2, hidden), nn.ReLU(), nn.Dense(hidden, classes)]
        )

    def construct(self, image):
        """Return the logits; see the class for shapes."""
        return self.classifier(self.features(image))
