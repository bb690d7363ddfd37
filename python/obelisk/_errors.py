"""What goes wrong, as exceptions with the parts that say what, where, and the way out."""


class Error(RuntimeError):
    """`str(error)` is the whole text in one line; the parts stand beside it."""

    kind: str = "error"
    code: int = 4

    def __init__(self, text: str, message: str = "", node: str = "", hint: str = "") -> None:
        super().__init__(text)
        self.message = message or text
        self.node = node  # the model's name for it, or ""
        self.hint = hint  # the way out, or ""


class UsageError(Error, ValueError):
    """Options, names, arrays, files that are not there."""
    kind, code = "usage", 1


class BadModelError(Error):
    """The model, or the compiled file, contradicts itself or its format."""
    kind, code = "bad model", 2


class UnsupportedError(Error):
    """A valid model that this version does not run."""
    kind, code = "unsupported", 3


class BuildError(Error):
    """The host compiler failed, or Obelisk has a defect."""
    kind, code = "build", 4


class AccuracyError(Error):
    """Answers differ from the reference by more than the tolerance."""
    kind, code = "accuracy", 5


class OutOfMemoryError(Error, MemoryError):
    kind, code = "memory", 6


class DeviceError(Error):
    kind, code = "device", 7


class InterruptedError(Error):
    kind, code = "interrupted", 130


_BY_CODE = {each.code: each for each in (UsageError, BadModelError, UnsupportedError, BuildError, AccuracyError,
                                         OutOfMemoryError, DeviceError, InterruptedError)}


def make(code: int, message: str, node: str, hint: str, text: str) -> Error:
    return _BY_CODE.get(code, Error)(text, message, node, hint)
