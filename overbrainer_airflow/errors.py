"""Every error of this package, one branch for each party that has to act on it."""


class OverbrainerError(Exception):
    """An export could not go on; the message names the run, machine or file and the next step."""


class InvalidInputError(OverbrainerError, ValueError):
    """A name, type or setting that no retry can make right."""


class RunNotReadyError(OverbrainerError):
    """A run that cannot be exported as it is: unknown, unfinished or incomplete."""


class MachineError(OverbrainerError):
    """A machine that cannot be reached, trusted or used as it is set up."""


class TransferError(OverbrainerError):
    """A file that did not arrive as it was sent."""


class JobError(OverbrainerError):
    """An export job that failed, was lost or was cancelled."""


class DeliveryError(OverbrainerError):
    """A GGUF that cannot be put where it is served from."""


class NoGGUFError(DeliveryError):
    """The job succeeded but left no GGUF file; the message names the directory."""


class GGUFError(OverbrainerError):
    """A file that is no GGUF, or not all of one."""


class OllamaError(OverbrainerError):
    """Ollama refused the model or could not be asked."""
