"""The numbers of the loop ledger, which the run checks of the loop read. Each is recorded only when it changes."""

from __future__ import annotations

from leadline.checks._history import History

# Derived: the steps of which the ledger counts how many were wrong; two words of a 64-bit integer hold them.
STEP_WINDOW = 32
# Heuristic: wrong steps among the last STEP_WINDOW; accidents (a restart, an interrupted cell) are single steps.
MIN_WRONG_STEPS = 4
# Heuristic: of the last STEP_WINDOW steps; ten epochs over each rollout make three.
MIN_MOVING_STEPS = 3

LOOP_METRICS = (
    "stale_gradients",  # of the last STEP_WINDOW steps: gradients from before the previous step were still there
    "lost_gradients",  # ... all gradients were gone at the step, though a backward pass had run
    "dropped_passes",  # ... gradients of a backward pass were cleared before the step, which used those of a later one
    "unseen_forwards",  # ... and a forward pass came between losing them and the step
    "idle_steps",  # ... the step used the gradients of the previous step again
    "late_clips",  # ... gradients were clipped after the step had used them, or before there were any
    "scaled_clips",  # ... gradients were clipped while they still carried the loss scale
    "restored_weights",  # ... what the step did was undone before the next one
    "fresh_states",  # ... the optimizer's state was empty although its parameters had stepped before
    "zero_rate",  # steps in a row with a learning rate of zero
    "low_rate",  # steps in a row with a learning rate below 1/1000 of its peak
    "schedule_overrun",  # calls of a cosine schedule after its end
    "schedule_length",  # ... and its length in calls
    "plateau_schedule",  # 1 if the schedule lowers the rate when progress stops
    "epoch_batches",  # batches in one epoch of the training loader
    "idle_scheduler_epochs",  # epochs since the optimizer got a schedule that was never stepped
    "eval_steps",  # steps in a row whose forward pass ran in eval mode, though dropout or batch norm are present
    "eval_noise",  # what eval mode switches off: see DROPOUT, FRESH_NORM and OLD_NORM
    "eval_after_train",  # 1 if earlier steps ran in train mode
    "train_mode_passes",  # evaluations of several batches without gradients that ran in train mode
    "train_mode_noise",  # what train mode switched on there
    "same_batch",  # steps in a row with the same inputs
    "loader_restarts",  # of the last STEP_WINDOW steps: a new iteration over the loader began
    "worker_copies",  # of the last STEP_WINDOW batches: equal to the one before, from another worker
    "loader_workers",  # worker processes of the training loader
    "sorted_labels",  # batches in a row at which the labels were sorted
    "one_class",  # batches in a row in which all labels were the same class
    "lost_state",  # 1: a loaded checkpoint held an optimizer state that was not loaded; 2: and a schedule was
    "foreign_parameters",  # tensors that an optimizer holds and that get no gradient
    "orphan_parameters",  # trainable tensors of the called modules that get a gradient and are in no optimizer
    "summed_passes",  # backward passes per step on different batches whose losses were not divided
    "idle_optimizers",  # optimizers that have never stepped although their parameters get gradients
    "trained_rows",  # samples of evaluations that training had seen
    "evaluated_rows",  # samples of evaluations that were compared
    "replica_drift",  # processes whose weights differ from those of the first
    "opponents",  # other optimizers that step after backward passes of their own
    "moving_targets",  # of the last STEP_WINDOW steps: outputs of a network that learns were used without a gradient
    "loss_interval",  # steps from one recorded loss to the next
)

# Derived: codes of what eval mode switches off, in different buckets of the ledger. Here: dropout.
DROPOUT = 1.0
# Derived: as above. Batch norm that has no statistics yet.
FRESH_NORM = 2.0
# Derived: as above. Batch norm that has statistics.
OLD_NORM = 4.0


def value(history: History, name: str) -> float:
    """The last value of a number of the ledger; 0 if there is none, or none that can be read."""
    last = history.latest(name)
    return last if last is not None and last > 0 else 0.0


def since(history: History, name: str) -> int:
    """The step at which the number became positive for the last time."""
    window = history.scalars(name)
    first = history.step or 0
    for step, number in zip(reversed(window.steps), reversed(window.values), strict=True):
        if not number > 0:
            break
        first = step
    return first


def incomparable_clause(history: History) -> str:
    """A clause that says why losses of different times cannot be compared; "" if they can."""
    if value(history, "opponents"):
        return ", while another optimizer trains against this one"
    if not is_comparable(history):
        return ", while a network that learns makes the targets or data of each step"
    return ""


def is_comparable(history: History) -> bool:
    """Whether losses of different times can be compared.

    They cannot if another optimizer trains against this one, or if the network makes its own targets or data.
    """
    return value(history, "opponents") == 0 and value(history, "moving_targets") < MIN_MOVING_STEPS
