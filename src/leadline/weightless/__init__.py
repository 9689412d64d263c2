"""Models without weights or memory: built, initialised and traced on tensors that have shapes and no numbers.

law, regions, contents   what the elements of a tensor would be, and which part of it
memory                   the same for every storage
draws, combining, writing   what each op does to that
kernels, following       the modes that see the ops
session, building, passing  from a factory to a log of its initialisers and to a Trace
configs, batches         from a Hugging Face config to a model and its batch
"""

from leadline.weightless.building import Built, Initial, InitLog, build_without_weights
from leadline.weightless.passing import trace_without_weights

__all__ = ["Built", "InitLog", "Initial", "build_without_weights", "trace_without_weights"]
