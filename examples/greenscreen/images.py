"""Handwritten digits as 32 x 32 images: partitioned, pre-processed, augmented."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

__all__ = ["AUGMENTATIONS", "PARTITIONS", "PREPROCESSING", "Split", "batches", "digits", "split"]

CLASSES = 10
SIDE = 32
"""Pixels."""
PARTITIONS = ("60-20-20", "70-15-15", "80-10-10", "90-5-5")
"""Per cent for training, validation and test."""

Images = np.ndarray
Augment = Callable[[Images, np.ndarray, np.random.Generator], tuple[Images, np.ndarray]]


@dataclass(frozen=True)
class Split:
    """Images and one-hot labels of each part."""

    train: tuple[Images, np.ndarray]
    validation: tuple[Images, np.ndarray]
    test: tuple[Images, np.ndarray]


def digits(count: int) -> tuple[Images, np.ndarray]:
    """Return scikit-learn's 8 x 8 digits, each pixel four times as wide and high, values 0 to
    255.
    """
    from sklearn.datasets import load_digits

    small, labels = load_digits(return_X_y=True)
    images = small[:count].reshape(-1, 8, 8).repeat(4, axis=1).repeat(4, axis=2)
    return images[..., None] * (255 / 16), np.eye(CLASSES)[labels[:count]]


def split(images: Images, labels: np.ndarray, partitioning: str, scaling: str, seed: int) -> Split:
    """Shuffle and cut into parts, and scale by statistics of the training part."""
    order = np.random.default_rng(seed).permutation(len(images))
    shares = [int(share) / 100 for share in partitioning.split("-")]
    first = round(shares[0] * len(order))
    second = first + round(shares[1] * len(order))
    scaled = PREPROCESSING[scaling](images[order[:first]])

    def part(rows: np.ndarray) -> tuple[Images, np.ndarray]:
        return scaled(images[rows]), labels[rows]

    return Split(part(order[:first]), part(order[first:second]), part(order[second:]))


def batches(
    part: tuple[Images, np.ndarray], size: int, augmentation: str, rng: np.random.Generator
) -> Iterator[tuple[Images, np.ndarray]]:
    """Yield one epoch in random order; the last batch may be smaller."""
    images, labels = part
    order = rng.permutation(len(images))
    for begin in range(0, len(order), size):
        rows = order[begin : begin + size]
        changed, targets = AUGMENTATIONS[augmentation](images[rows], labels[rows], rng)
        yield changed.astype(images.dtype), targets.astype(labels.dtype)


def _as_it_is(train: Images) -> Callable[[Images], Images]:
    return lambda images: images


def _standardized(train: Images) -> Callable[[Images], Images]:
    mean, deviation = train.mean(), train.std()
    return lambda images: (images - mean) / deviation


def _robust(train: Images) -> Callable[[Images], Images]:
    low, middle, high = np.percentile(train, (25, 50, 75))
    return lambda images: (images - middle) / max(high - low, 1.0)


def _min_max(train: Images) -> Callable[[Images], Images]:
    low, high = train.min(), train.max()
    return lambda images: (images - low) / (high - low)


PREPROCESSING: dict[str, Callable[[Images], Callable[[Images], Images]]] = {
    "none": _as_it_is,
    "standardization": _standardized,
    "robust_scaling": _robust,
    "minmax": _min_max,
}


def _plain(
    images: Images, labels: np.ndarray, rng: np.random.Generator
) -> tuple[Images, np.ndarray]:
    return images, labels


def _random(
    images: Images, labels: np.ndarray, rng: np.random.Generator
) -> tuple[Images, np.ndarray]:
    """Move each image by up to four pixels, and change its contrast."""
    moved = np.empty_like(images)
    for index, image in enumerate(images):
        down, right = rng.integers(-4, 5, size=2)
        moved[index] = np.roll(image, (down, right), axis=(0, 1)) * rng.uniform(0.8, 1.2)
    return moved, labels


def _mixup(
    images: Images, labels: np.ndarray, rng: np.random.Generator
) -> tuple[Images, np.ndarray]:
    """Blend every image and its label with another (Zhang et al., 2018)."""
    other = rng.permutation(len(images))
    share = rng.beta(0.2, 0.2, size=len(images))
    wide = share[:, None, None, None]
    mixed = wide * images + (1 - wide) * images[other]
    return mixed, share[:, None] * labels + (1 - share[:, None]) * labels[other]


def _cutmix(
    images: Images, labels: np.ndarray, rng: np.random.Generator
) -> tuple[Images, np.ndarray]:
    """Replace a rectangle of every image by another's; labels by area (Yun et al., 2019)."""
    other = rng.permutation(len(images))
    changed, targets = images.copy(), labels.copy()
    height, width = images.shape[1:3]
    for index, source in enumerate(other):
        side = np.sqrt(1 - rng.beta(1.0, 1.0))
        y, x = rng.integers(height), rng.integers(width)
        top, bottom = (int(np.clip(y + sign * side * height / 2, 0, height)) for sign in (-1, 1))
        left, right = (int(np.clip(x + sign * side * width / 2, 0, width)) for sign in (-1, 1))
        changed[index, top:bottom, left:right] = images[source, top:bottom, left:right]
        cut = (bottom - top) * (right - left) / (height * width)
        targets[index] = (1 - cut) * labels[index] + cut * labels[source]
    return changed, targets


AUGMENTATIONS: dict[str, Augment] = {
    "none": _plain,
    "random": _random,
    "mixup": _mixup,
    "cutmix": _cutmix,
}
