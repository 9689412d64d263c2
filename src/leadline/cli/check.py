"""`leadline check`: report what keeps a model, a config or a recorded run from training."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource
from msgspec.structs import replace

from leadline.checks._select import all_checks, unselected_codes
from leadline.cli.baseline import mark_known, read_known, write_known
from leadline.cli.exit_codes import FAILED, FINE, FOUND, UNDECIDED
from leadline.cli.options import (
    color_option,
    config_option,
    detail_options,
    examples,
    fail_option,
    file_option,
    format_option,
    html_option,
    output_option,
    picture_options,
    rule_options,
    steps_option,
)
from leadline.cli.output import at_work, emit, emit_pictures, explain_crash, look_for, say
from leadline.cli.program_check import CheckSettings, check_program
from leadline.cli.program_target import CommandOnPrograms, is_program, program_arguments
from leadline.config import TargetConfig
from leadline.errors import LeadlineError
from leadline.monitor.runfile import SUFFIX
from leadline.monitor.runfile.logs import ALIASES, EVENT_FILE_MARK, is_log
from leadline.records import FailOn
from leadline.records.report import Report
from leadline.report.place import OUTSIDE_OF_MODEL
from leadline.report.verdict import fails
from leadline.runner.program import Program
from leadline.targets import factory_source, is_config, load_factory, locate, move_case, show_target

if TYPE_CHECKING:
    from leadline.case import Case

Command = TypeVar("Command", bound=Callable[..., Any])


def is_past_run(target: str) -> bool:
    """Whether the target is a run file or a log, judged by its name."""
    return target.endswith(SUFFIX) or is_log(Path(target))


def check_past_run(target: str, columns: Mapping[str, str], *, drop: Collection[str] = frozenset()) -> Report:
    """The report of a training run from its run file or log, without torch."""
    # Imported here so that other commands need no SQLite.
    from leadline.monitor.past_run import judge_run, judge_samples
    from leadline.monitor.runfile.logs import read_log
    from leadline.monitor.runfile.read import Run

    path = Path(target)
    if target.endswith(SUFFIX):
        with Run(path) as run:
            return replace(judge_run(run, drop), target=target)
    source = "TensorBoard log" if EVENT_FILE_MARK in path.name or path.is_dir() else "CSV file"
    return replace(judge_samples(read_log(path, columns), source, path.name, drop), target=target)


def _pairs(_: click.Context, __: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    """Parse METRIC=NAME, such as `loss=train/ce`; the name may contain further equals signs."""
    pairs = [each.partition("=") for each in given]
    for metric, equals, column in pairs:
        if not (metric and equals and column) or metric not in ALIASES:
            raise click.BadParameter(f"expected METRIC=NAME, METRIC one of {', '.join(ALIASES)}")
    return {metric: column for metric, _, column in pairs}


def column_option(command: Command) -> Command:
    text = "Column or tag of a log that holds a metric, for instance loss=train/ce."
    return click.option(
        "--column", "columns", multiple=True, metavar="METRIC=NAME", callback=_pairs, help=text
    )(command)


# The command.

TRAINABLE_DEMO = "leadline.lab.demo:residual_mlp"


@click.command(
    cls=CommandOnPrograms,
    epilog=examples(
        "leadline check train.py:make_case",
        "leadline check train.py -- --epochs 3",
        "leadline check train.py --steps 64",
        "leadline check my.package:make_case --format json --output report.json",
        "leadline check train.py:make_case --html report.html --svg verdict.svg",
        f"leadline check {TRAINABLE_DEMO} --dtype bfloat16 -v",
        "leadline check config.json",
        "leadline check --no-weights train.py:make_case",
        "leadline check run.leadline",
        "leadline check log.csv --column loss=my_loss",
        "leadline check train.py:make_case --select F,B --ignore forward-growth --fail-on error",
        "leadline check train.py:make_case --write-baseline known.json",
        "leadline check train.py:make_case --baseline known.json --format github",
    ),
)
@click.argument("targets", metavar="[TARGET]...", nargs=-1)
@format_option
@output_option
@html_option
@picture_options
@rule_options
@fail_option
@click.option(
    "--baseline",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Show findings listed in this file as known; they do not fail the check.",
)
@file_option("--write-baseline", text="Write all current findings to this file as known.")
@config_option
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed torch before the factory runs.",
)
@click.option(
    "--no-weights",
    is_flag=True,
    help="Build the model without memory and predict the signal instead of measuring it.",
)
@click.option(
    "--no-rehearsal",
    is_flag=True,
    help="Skip the 8 to 64 trial steps on the batch that confirm the verdict; they are undone.",
)
@click.option(
    "--no-probes",
    is_flag=True,
    help="Skip the eight forward passes that ask what the outputs depend on and what the loss rewards.",
)
@steps_option
@click.option("--device", help="Move model and batch to this device, for instance cuda.")
@click.option("--dtype", help="Convert floating-point tensors to this dtype, for instance bfloat16.")
@column_option
@detail_options
@color_option
@click.pass_context
def check(
    context: click.Context,
    targets: tuple[str, ...],
    form: str,
    output: Path | None,
    page: Path | None,
    svg: Path | None,
    png: Path | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    fail_on: FailOn,
    baseline: Path | None,
    write_baseline: Path | None,
    seed: int,
    no_weights: bool,
    no_rehearsal: bool,
    no_probes: bool,
    steps: int,
    device: str | None,
    dtype: str | None,
    columns: dict[str, str],
    quiet: bool,
    verbose: bool,
    no_color: bool,
) -> int:
    """Report what keeps a model, a config or a run from training.

    TARGET is path/file.py:factory or package.module:factory. The factory takes no arguments and returns a
    leadline.Case, or a tuple or dict of its fields: model, inputs, targets, loss, optimizer, batches. One forward and
    backward pass of the model is traced. Without a TARGET, the targets of [tool.leadline] in pyproject.toml are
    checked; other options can be set there too.

    TARGET may also be a training program, path/file.py: its first steps are run, and what the first one trains is
    checked. Its arguments follow `--`. With --steps it is followed for a while, and its loop is judged too: cleared
    gradients, order of the data, schedule, mode. To let it train on, use `leadline run`.

    TARGET may also be the config.json of a Hugging Face model. Such a model, or any other with --no-weights, is built
    without memory, and theory predicts from its initializers what would be measured.

    For a training run, TARGET is the run file that leadline.watch writes, or a log: a CSV file or TensorBoard events.
    The report then contains its alerts and its last stored check, or what the run checks find in the log.

    Exit codes: 0 nothing at or above --fail-on, 1 findings, 2 wrong usage or an error, 3 undecided. With several
    targets the worst counts: an error, then findings, then undecided. The format does not change the exit code.
    """
    look = look_for(quiet=quiet, verbose=verbose, no_color=no_color or output is not None, fail_on=fail_on)
    selected = targets or (context.default_map or {}).get("targets", ())
    if not selected:
        raise click.UsageError(
            "Missing argument 'TARGET': give one, or list targets in [tool.leadline]", context
        )
    for target in selected:
        if not (is_config(target) or is_past_run(target) or is_program(target)):
            locate(target)
    _refuse_mixed_options(
        selected, is_for_factories=bool(no_weights or device or dtype), steps=steps, draws=bool(svg or png)
    )
    settings = {target: _target_settings(context, target) for target in selected}
    look = dataclasses.replace(
        look, fail_on_by_target={name: own.fail_on for name, own in settings.items() if own.fail_on}
    )
    codes = {name: _dropped(own, select, ignore) for name, own in settings.items()}
    known = read_known(baseline, write_baseline)
    measured = partial(
        check_target,
        rehearse=not no_rehearsal,
        probes=not no_probes,
        arguments=program_arguments(context),
        steps=steps,
    )
    try:
        with at_work(quiet=quiet):
            reports = [
                check_past_run(target, columns, drop=codes[target])
                if is_past_run(target)
                else (predict_target if no_weights or is_config(target) else measured)(
                    target, seed, device, dtype, drop=codes[target]
                )
                for target in selected
            ]
    except (LeadlineError, click.ClickException):
        raise
    except Exception as error:
        say(explain_crash(error))
        return FAILED
    if write_baseline is not None:
        known = write_known(known, reports, write_baseline)
    if path := write_baseline or baseline:
        reports = mark_known(reports, known, path)
    # Imported here because the renderers are slow to import, and --help needs none.
    from leadline.report.formats import FORMATS

    if page is not None:
        emit(FORMATS["html"](reports, look), page)
    emit_pictures(reports[0], svg, png)
    emit(FORMATS[form](reports, look), output)
    return max(
        (exit_code(each, look.fail_on_for(each.target)) for each in reports),
        key=[FINE, UNDECIDED, FOUND].index,
    )


def _refuse_mixed_options(
    selected: Sequence[str], *, is_for_factories: bool, steps: int, draws: bool
) -> None:
    """Raise UsageError for options that do not fit the targets."""
    if any(map(is_program, selected)) and is_for_factories:
        raise click.UsageError(
            "--no-weights, --device and --dtype are for factories: a program builds its own model"
        )
    if steps and not all(map(is_program, selected)):
        raise click.UsageError("--steps is for programs: only they have a loop to follow")
    if len(selected) > 1 and draws:
        raise click.UsageError("--svg and --png draw one verdict: name one target")


def _target_settings(context: click.Context, target: str) -> TargetConfig:
    """The settings of [tool.leadline.targets."TARGET"] that the command line does not override."""
    own: TargetConfig = (context.default_map or {}).get("per_target", {}).get(target, TargetConfig())
    overridden = {
        name: None
        for name in ("select", "ignore", "fail_on")
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    return replace(own, **overridden)


def _dropped(own: TargetConfig, select: Sequence[str], ignore: Sequence[str]) -> Collection[str]:
    """Codes of the checks that do not apply to a target, by its own settings or else those of the project."""
    mine = select if own.select is None else own.select
    return unselected_codes(mine, ignore if own.ignore is None else own.ignore, all_checks())


def exit_code(report: Report, fail_on: FailOn) -> int:
    """The exit code of a report; it depends on the findings and the verdict, not on the format."""
    if any(fails(finding, fail_on) for finding in report.findings):
        return FOUND
    return UNDECIDED if report.verdict == "undecided" else FINE


def check_target(
    target: str,
    seed: int,
    device: str | None = None,
    dtype: str | None = None,
    *,
    drop: Collection[str] = frozenset(),
    rehearse: bool = True,
    probes: bool = True,
    arguments: tuple[str, ...] = (),
    steps: int = 0,
) -> Report:
    """Load and check a target; output of its code goes to stderr, so that stdout holds only the result.

    A program, with these `arguments`, makes its first steps, or is followed for some `steps`, and is not seeded.

    Findings of the checks in `drop` are ignored.
    """
    if is_program(target):
        program = Program(target=target, arguments=arguments)
        settings = CheckSettings(steps=steps, rehearse=rehearse, probes=probes, drop=drop)
        return check_program(program, settings).report
    # Imported here so that a wrong target is reported without waiting for torch.
    import torch

    from leadline.case import seeded_factory
    from leadline.checks._diagnosis import check_case, ignore_checks
    from leadline.readings.wiring.memory import Rebuild

    with redirect_stdout(sys.stderr), show_target(target):
        torch.manual_seed(seed)
        factory = seeded_factory(load_factory(target))

        def make() -> Case:
            return move_case(factory(), device=device, dtype=dtype)

        start = perf_counter()
        case = make()
        rebuild = Rebuild(make=make, seconds=perf_counter() - start)
        report = check_case(case, rehearse=rehearse, probes=probes, rebuild=rebuild)
    source = factory_source(target)
    places = dict.fromkeys(("", *OUTSIDE_OF_MODEL), source) if source else {}
    sources = {**places, **report.sources}
    return ignore_checks(replace(report, target=target, sources=sources), drop)


def predict_target(
    target: str,
    seed: int,
    device: str | None = None,
    dtype: str | None = None,
    *,
    drop: Collection[str] = frozenset(),
) -> Report:
    """Predict a factory or a Hugging Face config without weights; the seed is not used."""
    if device is not None:
        raise click.UsageError("--device moves weights, but this check has none: drop the option")
    if is_config(target) and dtype is not None:
        raise click.UsageError('--dtype is for factories: set the entry "dtype" of the config instead')
    if not is_config(target):
        locate(target)
    # Imported here so that a wrong target is reported without waiting for torch.
    from leadline.api import predict
    from leadline.checks._diagnosis import ignore_checks

    with redirect_stdout(sys.stderr):
        if is_config(target):
            report = predict(target)
        else:
            with show_target(target):
                factory = load_factory(target)
                report = predict(lambda: move_case(factory(), device=None, dtype=dtype))
    return ignore_checks(replace(report, target=target), drop)
