"""ONNX Runtime's answers: the other side of `obelisk verify --against onnxruntime`.

    answers_onnxruntime.py MODEL FOLDER      reads FOLDER/inputs.npz, writes FOLDER/0.npy, 1.npy,
                                             ... by output
What goes wrong is one line on its output, and exit 1.
"""

import sys
from pathlib import Path


def main():
    model, folder = sys.argv[1], Path(sys.argv[2])
    import numpy as np
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    arrays = np.load(folder / "inputs.npz")
    feeds = {value.name: arrays[value.name] for value in session.get_inputs()}
    for place, array in enumerate(session.run(None, feeds)):
        np.save(folder / f"{place}.npy", array)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # told to the other side, which knows its user
        print(" ".join(f"{type(error).__name__}: {error}".split()))
        sys.exit(1)
