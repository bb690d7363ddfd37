"""Input values for the exported networks, from the card that zoo.py leaves beside each file."""
import numpy as np


def bind(dims, shape):
    return [shape[dim] if isinstance(dim, str) else dim for dim in dims]


def stretch(array, axis, size):
    """Linear interpolation along one axis."""
    at = np.linspace(0, array.shape[axis] - 1, size)
    low = np.minimum(at.astype(int), array.shape[axis] - 2)
    part = np.expand_dims(at - low, tuple(range(1, array.ndim - axis)))
    return (np.take(array, low, axis) * (1 - part) + np.take(array, low + 1, axis) * part)


def picture(generator, dims):
    """Large shapes and some noise: of noise alone every picture's means, and so a classifier's
    answers, are alike. The last two dimensions are height and width."""
    shapes = generator.standard_normal([*dims[:-2], 5, 5], dtype=np.float32)
    for axis in (-2, -1):
        shapes = stretch(shapes, len(dims) + axis, dims[axis])
    return (shapes + 0.3 * generator.standard_normal(dims)).astype(np.float32)


def wave(generator, dims):
    """A few tones and some noise along the last dimension, as a microphone hears them."""
    time = np.arange(dims[-1]) / 16000
    tones = [np.sin(2 * np.pi * generator.uniform(80, 4000, [*dims[:-1], 1]) * time
                    + generator.uniform(0, 6, [*dims[:-1], 1])) for _ in range(5)]
    return (sum(tones) / 2 + 0.1 * generator.standard_normal(dims)).astype(np.float32)


def make_inputs(card, shape, seed=0):
    """{input name: array}; the same card, shape and seed give the same values."""
    generator = np.random.default_rng(seed)
    values = {}
    for name, spec in card["inputs"].items():
        dims = bind(spec["dims"], shape)
        if spec["kind"] == "ids":
            values[name] = generator.integers(0, spec["high"], dims, dtype=np.int64)
        elif spec["kind"] == "ones_mask":
            values[name] = np.ones(dims, np.int64)
        elif spec["kind"] == "prefix_mask":
            # Row r keeps all tokens but the last r (and at least one), as padded sentences do.
            rows, columns = dims
            lengths = np.maximum(1, columns - np.arange(rows))
            values[name] = (np.arange(columns)[None, :] < lengths[:, None]).astype(np.int64)
        elif spec["kind"] == "picture":
            values[name] = picture(generator, dims)
        elif spec["kind"] == "wave":
            values[name] = wave(generator, dims)
        elif spec["kind"] == "unit":
            values[name] = generator.uniform(0, 1, dims).astype(np.float32)
        elif spec["kind"] == "count":
            # 0, 1, 2 …: positions; every seed gives the same.
            values[name] = np.broadcast_to(np.arange(dims[-1]) + spec["high"], dims).astype(np.int64)
        else:
            values[name] = generator.standard_normal(dims, dtype=np.float32)
    return values
