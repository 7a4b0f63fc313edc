"""Arrays that `k3 logits` wrote, and how far they are from a reference."""

import json
import os

import numpy as np


def read_array(path, shape):
    kind = "<i4" if path.endswith(".i32") else "<f4"
    return np.fromfile(path, kind).reshape(shape)


def read_arrays(directory):
    """Everything a manifest lists, by name, and the manifest."""
    with open(os.path.join(directory, "manifest.json"), encoding="utf-8") as stream:
        manifest = json.load(stream)
    arrays = {name: read_array(os.path.join(directory, entry["file"]), entry["shape"])
              for name, entry in manifest["arrays"].items()}
    return arrays, manifest


def relative_error(found, expected):
    """The length of the difference in units of the length of the expected array."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if not np.isfinite(found).all():
        return float("inf")
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def largest_error(found, expected):
    """The largest difference in units of the largest expected value."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if not np.isfinite(found).all():
        return float("inf")
    return float(np.abs(found - expected).max() / np.abs(expected).max())
