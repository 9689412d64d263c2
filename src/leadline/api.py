"""The public functions of Leadline. Read this file first.

Each function turns its arguments into a `Case` and passes it to the package that does the work:

    trace                        one forward and backward pass, op by op    tracer, readings.theory
    check                        what is wrong with a model, and a verdict  tracer, readings, checks
    predict                      the same report before there are weights   tracer.weightless, readings, checks
    update                       what one optimizer step does               readings.update
    forecast                     laws of a family in depth, width and batch readings.forecast
    symmetries, shrink, balance  rescalings that change no output           readings.symmetry
    fix, apply, undo             edits that are proved by training          fixes
    watch                        a running training loop                    monitor

What `trace` and `check` need is imported at the top. Each other function imports its package when it is called, so that
the first `check` of a process does not load the fixes and the monitor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from leadline.case import Case, Inputs, Loss, Progress, as_case, case_from, describe, seeded_factory
from leadline.checks import Check
from leadline.checks._diagnosis import check_case, explain_failure, make_report, read_trace
from leadline.errors import InputError
from leadline.joint_optimizer import Optimizers
from leadline.readings.limits import MAX_OUTPUT_CHANGE
from leadline.readings.profile import read_profile
from leadline.readings.theory.prediction import predict_moments
from leadline.readings.update.probe import BeforeStep
from leadline.readings.update.reading import read_update
from leadline.records import Forecast, Recipe, Trace, Update
from leadline.records.report import Report
from leadline.tracer.process import pause_garbage_collection
from leadline.tracer.shield import shielded
from leadline.tracer.trace import trace_case, trace_structure

if TYPE_CHECKING:
    from leadline.fixes import Fix
    from leadline.fixes._engine.repair import Repair
    from leadline.fixes._engine.trial import BudgetInput
    from leadline.monitor.arguments import OnAlert
    from leadline.monitor.watch import Watch
    from leadline.readings.family import Build
    from leadline.readings.symmetry.rescale import Symmetries


@shielded
def trace(
    model: nn.Module | Case,
    inputs: Inputs | None = None,
    targets: Any = None,
    loss: Loss | None = None,
    optimizer: Optimizers | None = None,
    *,
    theory: bool = True,
) -> Trace:
    """Run the model forward and backward once and return every op with statistics of its output and its gradient.

    The arguments are those of `leadline.Case`, or one `Case`. The optimizer makes no step; its groups are recorded.

    Next to each measured second moment, the trace holds the one that theory predicts from the mean and variance of the
    weights alone. The prediction takes about as long as the recording; `theory=False` skips it.

    The model runs in its current mode, dtype and device; compiled parts run uncompiled. Afterwards its parameters,
    buffers, gradients, hooks and flags, and all random number generators, are bit for bit as before. This also holds
    if the model raises; the exception is passed on unchanged. A model on the meta device gives shapes and structure
    without statistics.
    """
    recording = trace_case(case_from(model, inputs, targets, loss, optimizer), explain_failure)
    return predict_moments(recording) if theory else recording


@shielded
def check(  # noqa: PLR0913  (the five fields of a Case, and four choices)
    model: nn.Module | Case,
    inputs: Inputs | None = None,
    targets: Any = None,
    loss: Loss | None = None,
    optimizer: Optimizers | None = None,
    *,
    rules: Sequence[Check] = (),
    update: bool | None = None,
    rehearse: bool | int = True,
    probes: bool = True,
) -> Report:
    """Trace the model once and report what is wrong with it. The model is not changed.

    The arguments are those of `leadline.Case`, or one `Case`. `rules` are your own checks; they run after the built-in
    ones. `optimizer` may be a list, such as Muon and AdamW: all of them step together.

    If you pass an optimizer, two more measurements are made and undone. First, the optimizer makes one step, as in
    `leadline.update`; this costs about three passes. Then it rehearses: it makes 8 to 256 steps on half of the batch,
    or on it and the first of `batches` in turn, until it is clear whether the network learns what also holds for
    samples that it does not see. If it learns little, Adam trains it for comparison, in at most 192 more steps. From
    all of this comes the probability that the training works (`Report.outlook`). `rehearse=128` makes at most 128
    steps, `rehearse=False` skips the rehearsal and `update=False` skips both; below 192 there is no comparison.
    `update=True` raises an error if the step cannot be measured; the default reports it as not checked.

    At most eight more forward passes, in eval mode, ask whether the network is asked the right question: what its
    outputs depend on and what the loss rewards. If outputs see what they must not, two of these passes are made again
    to find the op. `probes=False` leaves them out.

    >>> import leadline, torch
    >>> report = leadline.check(torch.nn.Linear(4, 1), torch.randn(8, 4), loss=lambda y: y.square().mean())
    >>> report.verdict
    'trains'
    """
    case = case_from(model, inputs, targets, loss, optimizer)
    return check_case(case, rules=rules, update=update, rehearse=rehearse, probes=probes)


def predict(build_or_config: Any, *, batch: int = 2, tokens: int = 64) -> Report:
    """Report what is wrong with a model without allocating its weights.

    `build_or_config` is a function without arguments that returns a `leadline.Case` (or its fields as a tuple or
    dict), or a Hugging Face config: the path of a config.json, a dict, or the config object. For a config, `batch` and
    `tokens` set the size of the batch.

    The model is built and run on tensors without memory. Leadline follows what its initializers do, and theory
    predicts what `check` would measure. This takes seconds even for 70 billion parameters.

    >>> import leadline, torch
    >>> def make():
    ...     stack = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU()) for _ in range(30)]
    ...     return torch.nn.Sequential(*stack), torch.randn(64, 256), None, lambda y: y.square().mean()
    >>> leadline.predict(make).verdict
    'fails'
    """
    from leadline.tracer.weightless import trace_config_or_factory

    with pause_garbage_collection():
        recording = trace_config_or_factory(build_or_config, batch=batch, tokens=tokens)
    with pause_garbage_collection(cycles=False):
        return make_report(recording, *read_trace(recording))


@shielded
def update(  # noqa: PLR0913  (the five fields of a Case, and two choices)
    model: nn.Module | Case,
    inputs: Inputs | None = None,
    targets: Any = None,
    loss: Loss | None = None,
    optimizer: Optimizers | None = None,
    *,
    sharpness: bool = False,
    before_step: BeforeStep | None = None,
) -> Update:
    """Let the optimizer make one step, measure what the step does, and undo it bit for bit.

    The arguments are those of `leadline.Case`, or one `Case`. The optimizer is required; it may be fresh or in the
    middle of training, and its state is restored. Its step hooks do not run. `before_step` is what your loop does
    between `backward` and `step`, for example clipping.

    `sharpness=True` also measures the largest curvature by Lanczos iteration, and how the outputs respond to an
    infinitesimal step and to a step of each quarter of the depth. This costs several times as much.

    >>> import leadline, torch
    >>> model = torch.nn.Linear(4, 1)
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    >>> step = leadline.update(model, torch.randn(8, 4), loss=lambda y: y.square().mean(), optimizer=sgd)
    >>> step.predicted_loss_change < 0
    True
    """
    case = case_from(model, inputs, targets, loss, optimizer)
    profile, _ = read_profile(trace_structure(case))
    return read_update(case, profile, sharpness=sharpness, before_step=before_step)


@shielded
def forecast(  # noqa: PLR0913  (three axes and the length of the run)
    build: Build | Case | tuple[Any, ...],
    depths: Sequence[int] | None = None,
    *,
    widths: Sequence[int] | None = None,
    batches: Sequence[int] | None = None,
    steps: int | None = None,
    seeds: int = 3,
    progress: Progress | None = None,
) -> Forecast:
    """Build a network at several depths, widths or batch sizes, measure the first step of each, and fit the laws.

    `build` takes `depth`, `width` and `batch`, or some of them (a single argument of any name is the depth), and
    returns a `leadline.Case` (or its fields as a tuple or dict) with an optimizer. It is called once per value and
    seed, after `torch.manual_seed`; an axis that does not vary has its first value. You choose what the depth counts,
    for example blocks or layers. Without `widths` and `batches`, `depths` are 4, 8, 16 and 32. `steps` is the planned
    length of the run, with which weight decay's memory is compared.

    If you pass a `Case` instead of a function, the forecast is extrapolated from its own blocks.
    `progress(done, total, text)` is called before each network.
    """
    from leadline.readings.forecast import extrapolate_case, forecast_family

    if not callable(build) or isinstance(build, nn.Module):
        if widths is not None or batches is not None:
            raise InputError(
                expected="a function of width or batch that builds the network",
                got=f"one network ({describe(build)}) with widths or batches",
                fix="write def build(width, batch): ... that returns the Case, and pass the function",
            )
        return extrapolate_case(as_case(build), steps=steps)
    return forecast_family(
        build, depths, widths=widths, batches=batches, steps=steps, seeds=seeds, progress=progress
    )


@shielded
def symmetries(
    model: nn.Module | Case,
    inputs: Inputs | None = None,
    targets: Any = None,
    loss: Loss | None = None,
    optimizer: Optimizers | None = None,
) -> Symmetries:
    """Find the rescalings of parameter tensors that do not change what the model computes.

    The arguments are those of `leadline.Case`, or one `Case`. With a loss, everything that the loss reads must stay
    the same; without one, everything that the model returns. With an optimizer, the penalty is the sum of squares of
    the parameters that it decays; without one, of all parameters. Frozen parameters count as constants, unless all
    parameters are frozen; then they are treated as trainable.

    >>> import leadline, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> print(leadline.symmetries(model, torch.randn(3, 4)).generators[0].says)
    0.weight, 0.bias against 2.weight
    """
    from leadline.readings.symmetry.rescale import Symmetries, find_symmetry

    case = case_from(model, inputs, targets, loss, optimizer)
    return Symmetries(find_symmetry(case), case)


@shielded
def shrink(
    model: nn.Module, inputs: Inputs, factor: float, *, tolerance: float = MAX_OUTPUT_CHANGE
) -> nn.Module:
    """Return a copy that computes the same function, with its inert parameters multiplied by `factor`.

    A parameter is inert if it can shrink while no other parameter grows. All other parameters keep their values. The
    inert ones get the same factor where possible; where two of them multiply each other, they get powers of it.
    Running statistics are rescaled too, so the copy is equivalent in training and in evaluation.

    The relative change of the outputs on `inputs`, in the current mode of the model, is measured. If it would exceed
    `tolerance`, because the eps of a norm is no longer small compared with its input, the smallest allowed factor is
    used instead and the warning `EpsLimit` states that factor and the change. Raises `InputError` if no parameter is
    inert.
    """
    from leadline.readings.symmetry.rescale import shrunk_copy

    return shrunk_copy(model, inputs, factor, tolerance=tolerance)


@shielded
def balance(model: nn.Module, inputs: Inputs, *, tolerance: float = MAX_OUTPUT_CHANGE) -> nn.Module:
    """Return a copy that computes the same function, with the smallest sum of squares of its parameters.

    The sum leaves out inert parameters, which have no smallest value: they keep theirs, or shrink if others require
    it; see `leadline.shrink`. If the outputs on `inputs` would change by more than `tolerance`, because the eps of a
    norm is no longer small compared with its input, the scales before norms stay as they are and the rest is balanced.
    """
    from leadline.readings.symmetry.rescale import balanced_copy

    return balanced_copy(model, inputs, tolerance=tolerance)


@shielded
def fix(  # noqa: PLR0913  (the six fields of a Case, and three choices)
    model: nn.Module | Case | Callable[[], Case | tuple[Any, ...] | Mapping[str, Any]],
    inputs: Inputs | None = None,
    targets: Any = None,
    loss: Loss | None = None,
    optimizer: Optimizers | None = None,
    batches: Iterable[Any] | None = None,
    budget: BudgetInput = None,
    apply: bool = False,
    *,
    fixes: Sequence[Fix] = (),
    progress: Progress | None = None,
) -> Repair:
    """Search for edits that make the model train, and prove each of them by tracing and training a copy.

    The arguments are those of `leadline.Case`, or one `Case`. A copy with the edit and a copy without it train on your
    batches (on the one batch if there are no others) with a copy of your optimizer; without an optimizer, with Adam at
    a learning rate of 0.001. `budget` limits the processor time (on a GPU, the time), for example 60 (seconds) or "2m".
    Your own `fixes` are tried in addition to the built-in ones. `progress(done, total, text)` is called along the way.

    Instead of a model, you may pass a function without arguments that returns a `Case` (or its fields as a tuple or
    dict). It builds the copies of a model that `copy.deepcopy` cannot copy; each gets the parameters of the first.

    Your model, optimizer and random number generators do not change unless `apply` is True. Then exactly the edits of
    the recipe are made; `leadline.undo(model)` reverts them.
    """
    from leadline.fixes import all_fixes
    from leadline.fixes._engine.repair import repair

    factory = None
    if not isinstance(model, nn.Module | Case | type) and callable(model):
        factory = seeded_factory(model)
        case = case_from(factory(), inputs, targets, loss, optimizer)
    else:
        case = case_from(model, inputs, targets, loss, optimizer)  # type: ignore[arg-type]  # a class: refused there
    if batches is not None:
        case = replace(case, batches=batches)
    return repair(case, budget, apply=apply, fixes=(*all_fixes(), *fixes), progress=progress, factory=factory)


def apply(
    model: nn.Module,
    recipe: Recipe | Mapping[str, Any] | str | Path,
    optimizer: Optimizers | None = None,
) -> nn.Module:
    """Apply the edits of a recipe to a model and its optimizer; return the model.

    The recipe may also be given as JSON, as text or parsed, or as the path of a JSON file. Either all edits are made or
    none. A recipe that is already applied is not applied again.
    """
    from leadline.fixes._engine.repair import apply_recipe

    return apply_recipe(model, recipe, optimizer)


def undo(model: nn.Module) -> nn.Module:
    """Revert the recipe that was applied last, also in the optimizer; return the model.

    Everything that its edits changed is restored bit for bit, so later training of those parameters is lost.
    """
    from leadline.fixes._engine.repair import undo_recipe

    return undo_recipe(model)


def watch(
    model: nn.Module,
    optimizer: Optimizers,
    *,
    store: str | Path | None = None,
    budget: float = 0.01,
    every: int | None = None,
    on_alert: OnAlert = "log",
) -> Watch:
    """Watch a training loop. Training stays bit for bit the same.

    `budget` is the share of the step time that watching may use; measurements that do not fit are made less often.
    `every=N` replaces the budget: all parameters are measured at every step, every N-th step is traced, and block
    outputs are measured ten times as often. `store` is the path of a run file, which other processes can read while it
    grows; without one, alerts and the last report stay in memory. `on_alert` is "log", "raise", "stop" or a function
    of the alert. With "skip_step" or "clip", steps with outlier gradients are skipped or clipped; only these two
    change training.

    Use the watch as a context manager, or call `close()`. Pass it the loss: `w.loss(loss)` returns the loss unchanged.

    >>> import leadline, torch
    >>> model = torch.nn.Linear(4, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with leadline.watch(model, optimizer) as w:
    ...     for _ in range(3):
    ...         w.loss(model(torch.ones(8, 4)).square().mean()).backward()
    ...         optimizer.step()
    ...         optimizer.zero_grad()
    >>> w.step
    3
    """
    from leadline.monitor.watch import start_watch

    return start_watch(model, optimizer, store=store, budget=budget, every=every, on_alert=on_alert)
