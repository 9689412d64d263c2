"""`leadline check`: report what keeps a model, a config or a recorded run from training."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

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
    rule_options,
)
from leadline.cli.output import at_work, emit, explain_crash, look_for, say
from leadline.config import TargetConfig
from leadline.errors import LeadlineError
from leadline.monitor.runfile import SUFFIX
from leadline.monitor.runfile.logs import ALIASES, EVENT_FILE_MARK, is_log
from leadline.records.report import Report
from leadline.report.formats import FORMATS
from leadline.report.layout import FailOn
from leadline.report.verdict import fails
from leadline.targets import factory_source, is_config, load, load_factory, locate, move_case

Command = TypeVar("Command", bound=Callable[..., Any])


def is_past(target: str) -> bool:
    """A run file or a log, by its name."""
    return target.endswith(SUFFIX) or is_log(Path(target))


def look_back(target: str, columns: Mapping[str, str], *, drop: Collection[str] = frozenset()) -> Report:
    """What is known of a training that has run. Needs no torch."""
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
    """`--column loss=train/ce` as an entry; a name may hold further equals signs."""
    pairs = [each.partition("=") for each in given]
    for metric, equals, column in pairs:
        if not (metric and equals and column) or metric not in ALIASES:
            raise click.BadParameter(f"expected METRIC=NAME, METRIC one of {', '.join(ALIASES)}")
    return {metric: column for metric, _, column in pairs}


def column_option(command: Command) -> Command:
    text = "Of a log: which column, or tag, a number is in, for instance loss=train/ce."
    return click.option(
        "--column", "columns", multiple=True, metavar="METRIC=NAME", callback=_pairs, help=text
    )(command)


# `leadline check`: trace one pass of a model and report what keeps it from training.

TWIN = "leadline.lab.demo:residual_mlp"


@click.command(
    epilog=examples(
        "leadline check train.py:make_case",
        "leadline check my.package:make_case --format json --output report.json",
        "leadline check train.py:make_case --html report.html",
        f"leadline check {TWIN} --dtype bfloat16 -v",
        "leadline check config.json",
        "leadline check --no-weights train.py:make_case",
        "leadline check run.leadline",
        "leadline check log.csv --column loss=my_loss",
        "leadline check train.py:make_case --select F,B --ignore forward-growth --fail-on error",
        "leadline check train.py:make_case --write-baseline known.json",
        "leadline check train.py:make_case --baseline known.json --format github",
    )
)
@click.argument("targets", metavar="[TARGET]...", nargs=-1)
@format_option
@output_option
@html_option
@rule_options
@fail_option
@click.option(
    "--baseline",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Findings listed in this file are known: they are shown and do not fail.",
)
@file_option("--write-baseline", text="List in this file all that is found now, then compare with it.")
@config_option
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seeds torch before the factory runs.",
)
@click.option(
    "--no-weights",
    is_flag=True,
    help="Build the model without memory and predict what would be measured.",
)
@click.option(
    "--no-rehearsal",
    is_flag=True,
    help="Leave out the eight to sixteen steps on the batch (made and undone) that confirm the verdict.",
)
@click.option("--device", help="Move model and batch there, for instance cuda.")
@click.option("--dtype", help="Change floating-point tensors to this type, for instance bfloat16.")
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
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    fail_on: FailOn,
    baseline: Path | None,
    write_baseline: Path | None,
    seed: int,
    no_weights: bool,
    no_rehearsal: bool,
    device: str | None,
    dtype: str | None,
    columns: dict[str, str],
    quiet: bool,
    verbose: bool,
    no_color: bool,
) -> int:
    """Trace one pass of a model and report what keeps it from training.

    TARGET is path/file.py:factory or package.module:factory. The factory takes no arguments and returns a
    leadline.Case, or a tuple or dict of its fields: model, inputs, targets, loss, optimizer, batches. Without a
    TARGET, those of [tool.leadline] in pyproject.toml are checked; other options can be set there too.

    TARGET may also be the config.json of a Hugging Face model. Such a model, and with --no-weights any other, is built
    without memory, its initialisers are followed, and theory predicts what would be measured.

    Of a training that has run, TARGET is its run file, as leadline.watch writes it, or a log: a CSV file, or events of
    TensorBoard. Then the alerts and the last stored check are judged, or what alarms see in the log.

    Exit codes: 0 nothing at or above --fail-on, 1 findings, 2 wrong usage or an error, 3 could not decide. Of several
    targets the worst counts: an error, then findings, then undecided. The format changes nothing.
    """
    look = look_for(quiet=quiet, verbose=verbose, no_color=no_color or output is not None, fail_on=fail_on)
    wanted = targets or (context.default_map or {}).get("targets", ())
    if not wanted:
        raise click.UsageError(
            "Missing argument 'TARGET': name one, or list targets in [tool.leadline]", context
        )
    for target in wanted:
        if not (is_config(target) or is_past(target)):
            locate(target)
    chosen = {target: wishes(context, target) for target in wanted}
    look = dataclasses.replace(
        look, fail_on_by_target={name: own.fail_on for name, own in chosen.items() if own.fail_on}
    )
    codes = {name: _dropped(own, select, ignore) for name, own in chosen.items()}
    known = read_known(baseline, write_baseline)
    measured = partial(examine, rehearse=not no_rehearsal)
    try:
        with at_work(quiet=quiet):
            reports = [
                look_back(target, columns, drop=codes[target])
                if is_past(target)
                else (foresee if no_weights or is_config(target) else measured)(
                    target, seed, device, dtype, drop=codes[target]
                )
                for target in wanted
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
    if page is not None:
        emit(FORMATS["html"](reports, look), page)
    emit(FORMATS[form](reports, look), output)
    return max(
        (exit_code(each, look.fail_on_for(each.target)) for each in reports),
        key=[FINE, UNDECIDED, FOUND].index,
    )


def wishes(context: click.Context, target: str) -> TargetConfig:
    """What [tool.leadline.targets."TARGET"] says, as far as the command line does not say otherwise."""
    own: TargetConfig = (context.default_map or {}).get("per_target", {}).get(target, TargetConfig())
    said = {
        name: None
        for name in ("select", "ignore", "fail_on")
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    return replace(own, **said)


def _dropped(own: TargetConfig, select: Sequence[str], ignore: Sequence[str]) -> Collection[str]:
    """Codes of the rules that do not count for a target: its own choice, or else that of the project."""
    mine = select if own.select is None else own.select
    return unselected_codes(mine, ignore if own.ignore is None else own.ignore, all_checks())


def exit_code(report: Report, fail_on: FailOn) -> int:
    """What the shell is told; it depends on the findings and the verdict, never on the format."""
    if any(fails(finding, fail_on) for finding in report.findings):
        return FOUND
    return UNDECIDED if report.verdict == "undecided" else FINE


def examine(
    target: str,
    seed: int,
    device: str | None = None,
    dtype: str | None = None,
    *,
    drop: Collection[str] = frozenset(),
    rehearse: bool = True,
) -> Report:
    """Load and check a target. What its code prints goes to stderr, so that stdout holds the result alone.

    What the rules in `drop` find does not count.
    """
    import torch

    from leadline.checks._diagnosis import check_case, ignore_checks

    with redirect_stdout(sys.stderr):
        torch.manual_seed(seed)
        case = move_case(load(target), device=device, dtype=dtype)
        report = check_case(case, rehearse=rehearse)
    factory = factory_source(target)
    sources = {**({"": factory} if factory else {}), **report.sources}
    return ignore_checks(replace(report, target=target, sources=sources), drop)


def foresee(
    target: str,
    seed: int,
    device: str | None = None,
    dtype: str | None = None,
    *,
    drop: Collection[str] = frozenset(),
) -> Report:
    """Predict a target without its weights: a factory, or a Hugging Face config. No number is drawn with the seed."""
    if device is not None:
        raise click.UsageError("--device says where weights are; here there are none")
    if is_config(target) and dtype is not None:
        raise click.UsageError('--dtype is for factories; in a config it is the entry "dtype"')
    if not is_config(target):
        locate(target)
    from leadline.api import predict
    from leadline.checks._diagnosis import ignore_checks

    with redirect_stdout(sys.stderr):
        if is_config(target):
            report = predict(target)
        else:
            make = load_factory(target)
            report = predict(lambda: move_case(make(), device=None, dtype=dtype))
    return ignore_checks(replace(report, target=target), drop)
