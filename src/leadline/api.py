"""The public functions of Leadline, in the order in which they are used. Read this first.

Each function here is a few lines: it turns its arguments into a `Case` and hands it to the package that does the work.

    trace       one forward and backward pass            tracer, readings.theory
    check       what is wrong, and the verdict           tracer, readings, checks
    predict     the same without weights                 tracer.weightless, readings, checks
    update      what one optimizer step does             readings.update
    forecast    how deep this family of networks can go  readings.forecast
    symmetries, shrink, balance   free rescalings        readings.symmetry
    fix, apply, undo              verified repairs       fixes
    watch       a live run, within an overhead budget    monitor
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leadline.case import Case, Inputs, Loss, Progress, as_case, given
from leadline.checks import Check
from leadline.checks._diagnosis import check_case, make_report, read_trace
from leadline.fixes import Fix, all_fixes
from leadline.fixes._engine.repair import Repair, apply_recipe, repair, undo_recipe
from leadline.fixes._engine.trial import Given
from leadline.monitor.arguments import OnAlert
from leadline.monitor.watch import Watch, start_watch
from leadline.readings.forecast import DEPTHS, Build, extrapolate_case, forecast_family
from leadline.readings.profile import read_profile
from leadline.readings.symmetry.rescale import (
    MAX_OUTPUT_CHANGE,
    Symmetries,
    balanced_copy,
    find_symmetry,
    shrunk_copy,
)
from leadline.readings.theory.prediction import predict_moments
from leadline.readings.update.probe import BeforeStep
from leadline.readings.update.reading import read_update
from leadline.records import Forecast, Recipe, Trace, Update
from leadline.records.report import Report
from leadline.tracer.trace import trace_case, trace_structure
from leadline.tracer.weightless import trace_config_or_factory
from leadline.tracer.weightless.session import pause_garbage_collection


def trace(
    model: nn.Module | Case,
    inputs: Inputs | None = None,
    targets: Any = None,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    theory: bool = True,
) -> Trace:
    """Run the model forward and backward once and record every op, with statistics of its output and its gradient.

    Beside each measured second moment stands the one that theory predicts from the two moments of the weights alone.
    The prediction takes about as long as the recording; `theory=False` leaves it out.

    The model runs as it is (train or eval mode, dtype, device); compiled parts run uncompiled. Afterwards parameters,
    buffers, gradients, random number generators, flags and hooks are bit for bit as before. This also holds if the
    model raises; its exception then comes out unchanged. A model on the meta device gives shapes and structure only.

    The arguments are those of `leadline.Case`, or a Case alone. The optimizer's groups are recorded; it does not step.
    """
    recorded = trace_case(given(model, inputs, targets, loss, optimizer))
    return predict_moments(recorded) if theory else recorded


def check(  # noqa: PLR0913  (the five fields of a Case, and three choices)
    model: nn.Module | Case,
    inputs: Inputs | None = None,
    targets: Any = None,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    rules: Sequence[Check] = (),
    update: bool | None = None,
    rehearse: bool = True,
) -> Report:
    """Trace the model once and report what is wrong with it. The model is left exactly as found.

    The arguments are those of `leadline.Case`, or a Case alone. `rules` are checks of your own, run in addition to the
    built-in ones. If you pass an optimizer, it makes one step, which is measured and undone (see `leadline.update`;
    about three more passes). It then rehearses: eight to sixteen steps on the batch, undone too. `rehearse=False`
    leaves the rehearsal out, `update=False` leaves both out, and `update=True` raises where the step is impossible.

    >>> import leadline, torch
    >>> report = leadline.check(torch.nn.Linear(4, 1), torch.randn(8, 4), loss=lambda y: y.square().mean())
    >>> report.verdict
    'trains'
    """
    case = given(model, inputs, targets, loss, optimizer)
    return check_case(case, rules=rules, update=update, rehearse=rehearse)


def predict(build_or_config: Any, *, batch: int = 2, tokens: int = 64) -> Report:
    """Report what is wrong with a model before it has a single weight.

    `build_or_config` is a function without arguments that returns a `leadline.Case` (or its fields as a tuple or
    dict), or a Hugging Face config: the path of a config.json, a dict, or the config object. The model is built and
    run on tensors without memory while its initializers are followed, and theory predicts everything that `check`
    would measure: 70 billion parameters take seconds. For a config, `batch` and `tokens` set the size of the batch.

    >>> import leadline, torch
    >>> def make():
    ...     stack = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU()) for _ in range(30)]
    ...     return torch.nn.Sequential(*stack), torch.randn(64, 256), None, lambda y: y.square().mean()
    >>> leadline.predict(make).verdict
    'fails'
    """
    with pause_garbage_collection():
        recorded = trace_config_or_factory(build_or_config, batch=batch, tokens=tokens)
    with pause_garbage_collection(cycles=False):
        return make_report(recorded, *read_trace(recorded))


def update(  # noqa: PLR0913  (the five fields of a Case, and two choices)
    model: nn.Module | Case,
    inputs: Inputs | None = None,
    targets: Any = None,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    sharpness: bool = False,
    before_step: BeforeStep | None = None,
) -> Update:
    """Let the optimizer make one step, measure what it does, and undo it bit for bit, optimizer state included.

    The arguments are those of `leadline.Case`, or a Case alone; the optimizer is required, fresh or in the middle of
    training. `sharpness` adds the largest curvature, by Lanczos iteration, and the response of the outputs to an
    infinitesimal step and to each quarter of the depth, at several times the cost. `before_step` is what your loop
    does between `backward` and `step`, for example clipping. Step hooks of the optimizer do not run.

    >>> import leadline, torch
    >>> model = torch.nn.Linear(4, 1)
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    >>> step = leadline.update(model, torch.randn(8, 4), loss=lambda y: y.square().mean(), optimizer=sgd)
    >>> step.predicted_loss_change < 0
    True
    """
    case = given(model, inputs, targets, loss, optimizer)
    profile, _ = read_profile(trace_structure(case))
    return read_update(case, profile, sharpness=sharpness, before_step=before_step)


def forecast(
    build: Build | Case | tuple[Any, ...],
    depths: Sequence[int] = DEPTHS,
    *,
    seeds: int = 3,
    progress: Progress | None = None,
) -> Forecast:
    """Build a network at several depths, measure the first step of each, and say how deep the family can go.

    `build(depth)` returns a `leadline.Case` (or its fields as a tuple or dict) with an optimizer. It is called once
    per depth and seed, after `torch.manual_seed`. The depth means what you want it to: blocks or layers. A `Case`
    instead of a function is extrapolated from its own blocks. `progress(done, total, text)` is called before each
    network.
    """
    if not callable(build) or isinstance(build, nn.Module):
        return extrapolate_case(as_case(build))
    return forecast_family(build, depths, seeds=seeds, progress=progress)


def symmetries(
    model: nn.Module | Case,
    inputs: Inputs | None = None,
    targets: Any = None,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Symmetries:
    """Find which parameter tensors can be multiplied by numbers without changing what the model computes.

    The arguments are those of `leadline.Case`, or a Case alone. Without a loss, everything that the model returns must
    stay the same; with one, everything that the loss reads. With an optimizer, only what it decays counts as penalty.
    Frozen parameters are constants, unless all are frozen: then the group is that of the same model unfrozen.

    >>> import leadline, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> print(leadline.symmetries(model, torch.randn(3, 4)).generators[0].says)
    0.weight, 0.bias against 2.weight
    """
    case = given(model, inputs, targets, loss, optimizer)
    return Symmetries(find_symmetry(case), case)


def shrink(
    model: nn.Module, inputs: Inputs, factor: float, *, tolerance: float = MAX_OUTPUT_CHANGE
) -> nn.Module:
    """Return a copy that computes the same with its inert parameters multiplied by `factor`, as far as eps allows.

    Inert parameters can shrink while no other parameter grows; all others keep their values. All inert ones get the
    same factor where possible; where two of them multiply each other, they get powers of it. Running statistics are
    rescaled along, so training and evaluation both stay the same. The relative change of the outputs on `inputs`, in
    the current mode of the model, is measured. Where it would exceed `tolerance`, because the eps of a norm is no
    longer small beside its input, the copy stops at the smallest allowed factor and the warning `EpsLimit` states
    that factor and the change. Raises `InputError` if nothing can shrink.
    """
    return shrunk_copy(model, inputs, factor, tolerance=tolerance)


def balance(model: nn.Module, inputs: Inputs, *, tolerance: float = MAX_OUTPUT_CHANGE) -> nn.Module:
    """Return a copy that computes the same with the least sum of squares of all but its inert parameters.

    Inert parameters have no least value: they keep theirs, or shrink if others need it; `shrink` is for them. If the
    outputs on `inputs` would change by more than `tolerance`, because the eps of a norm is no longer small beside its
    input, the scale in front of norms stays as it is and the rest is balanced.
    """
    return balanced_copy(model, inputs, tolerance=tolerance)


def fix(  # noqa: PLR0913  (the six fields of a Case, and three choices)
    model: nn.Module | Case,
    inputs: Inputs | None = None,
    targets: Any = None,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    batches: Iterable[Any] | None = None,
    budget: Given = None,
    apply: bool = False,
    *,
    fixes: Sequence[Fix] = (),
    progress: Progress | None = None,
) -> Repair:
    """Search for edits after which the model trains, and prove each: trace again, train beside the untreated model.

    The arguments are those of `leadline.Case`, or a Case alone. Trials use your batches, or the one batch if there are
    no others, and a copy of your optimizer; without one, Adam at a learning rate of 0.001. `budget` is a time such as
    60 (seconds) or "2m".

    Your model, optimizer and random numbers stay as they are unless `apply` is True. Then exactly the edits of the
    recipe are made on them, and `leadline.undo(model)` takes them back.

    `fixes` are tried in addition to the built-in ones. `progress(done, total, text)` is called along the way.
    """
    case = given(model, inputs, targets, loss, optimizer)
    if batches is not None:
        case = replace(case, batches=batches)
    return repair(case, budget, apply=apply, fixes=(*all_fixes(), *fixes), progress=progress)


def apply(
    model: nn.Module,
    recipe: Recipe | Mapping[str, Any] | str | Path,
    optimizer: torch.optim.Optimizer | None = None,
) -> nn.Module:
    """Make the edits of a recipe on a model and its optimizer; return the model.

    The recipe may also be its JSON, as text or loaded, or the path of the file that holds it. Either all edits are
    made or none. A recipe that is already applied is not applied again.
    """
    return apply_recipe(model, recipe, optimizer)


def undo(model: nn.Module) -> nn.Module:
    """Take back the recipe that was applied last, optimizer included; return the model.

    Everything that its edits changed is bit for bit as before them, so later training of those parameters is lost.
    """
    return undo_recipe(model)


def watch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    store: str | Path | None = None,
    budget: float = 0.01,
    every: int | None = None,
    on_alert: OnAlert = "log",
) -> Watch:
    """Watch a training loop. Training is bit for bit what it would be without.

    `budget` is the share of the step time that watching may take; what does not fit is measured less often. `every=N`
    ignores the budget: it measures all parameters at every step, traces every N-th step, and measures block exits ten
    times as often. `store` is a run file, which other processes can read while it grows; without one, alerts and the
    last report stay in memory. `on_alert` is "log", "raise", "stop" or a function of the alert. "skip_step" and "clip"
    also act on gradients that stand out; only these two change training.

    Use it as a context manager, or call `close()`. Pass it the loss: `w.loss(loss)` returns it unchanged.

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
    return start_watch(model, optimizer, store=store, budget=budget, every=every, on_alert=on_alert)
