"""Input values for the exported networks, from the card that zoo.py leaves beside each file."""
import numpy as np


def bind(dims, shape):
    return [shape[dim] if isinstance(dim, str) else dim for dim in dims]


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
        else:
            values[name] = generator.standard_normal(dims, dtype=np.float32)
    return values
