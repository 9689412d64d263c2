"""A finding about a program becomes a change of its own line where exactly one line can be meant."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import leadline
from leadline.fixes._engine.program_edits import PROGRAM_EDITS, ProgramSource, find_program_edits
from leadline.fixes._engine.source_edits import apply_source_edits
from leadline.fixes._engine.source_files import SourceFile
from leadline.records import Dependence, GraphCut, InputUse, Optimizer, Question, Source
from leadline.records.codec import Unsaved
from tests.support import reports as samples

LOOP = """\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
for inputs, labels in batches:
    loss = -nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
"""
POSITIVE = "loss = nn.functional.cross_entropy(model(inputs), labels)"


def source_of(text, code, *, untrained=(), severity="error", **profile):
    """The program with a finding, as if it had run: each call of `backward` and `step` was made from its line."""
    text = dedent(text)
    optimizer = Optimizer(name="Adam", groups=(), steps=0)
    report = samples.report(samples.profile([1.0], [1.0], optimizer=optimizer, **profile))
    found = samples.finding(code, severity=severity)
    called = {"the loss": ".backward()", "the step": ".step("}
    rows = text.splitlines()
    lines = {
        what: tuple(Source(file="train.py", line=place + 1) for place, row in enumerate(rows) if call in row)
        for what, call in called.items()
    }
    file = SourceFile(name="train.py", text=text, tree=ast.parse(text))
    return ProgramSource(
        file=file, report=replace(report, findings=(found,)), lines=lines, untrained=untrained
    )


def changed(text, code, **facts):
    """The lines that differ after the change; None if there is no change."""
    source = source_of(text, code, **facts)
    edits = list(find_program_edits(source))
    if not edits:
        return None
    assert [edit.finding.code for edit in edits] == [code]
    after = apply_source_edits(source.file.text, [edits[0].change])
    ast.parse(after)
    before = source.file.text.splitlines()
    return [row.strip() for row in after.splitlines() if row not in before]


def test_the_minus_sign_of_the_loss_is_deleted():
    assert changed(LOOP, "D909") == [POSITIVE]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("loss.backward()", "(loss / 4).backward()", [POSITIVE]),
        ("loss.backward()", "scaler.scale(loss).backward()", [POSITIVE]),
        ("loss.backward()", "(-other).backward()", ["(other).backward()"]),
        ("loss = -", "loss = ", None),
        ("lr=0.1", "lr=0.1, maximize=True", None),
        ("    loss.backward()", "    loss += penalty\n    loss.backward()", None),
        ("    loss.backward()", "    loss.backward()\n    (-other).backward()", None),
        ("loss = -nn", "loss = penalty - nn", None),
    ],
)
def test_the_sign_of_a_loss_is_changed_only_where_one_minus_sign_can_be_meant(old, new, expected):
    assert changed(LOOP.replace(old, new), "D909") == expected


WITHOUT_CLEARING = LOOP.replace("loss = -", "loss = ")


def test_gradients_are_cleared_after_the_step():
    assert changed(WITHOUT_CLEARING, "T816") == ["optimizer.zero_grad()"]


def test_gradients_are_cleared_inside_the_condition_of_an_accumulated_step():
    step = "        optimizer.step()  # whole batch"
    text = WITHOUT_CLEARING.replace("    optimizer.step()", f"    if last:\n{step}")
    (edit,) = find_program_edits(source_of(text, "T816"))
    assert edit.change.new == f"{step}\n        optimizer.zero_grad()\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    optimizer.step()", "    optimizer.step()\n    second.step()"),
        ("    optimizer.step()", "    optimizer.step(); count += 1"),
        ("    optimizer.step()", "    if last: optimizer.step()"),
        ("for inputs", "optimizer.zero_grad()\nfor inputs"),
        ("for inputs", "model[0].weight.grad = None\nfor inputs"),
    ],
)
def test_gradients_are_not_cleared_where_two_places_can_be_meant_or_the_program_does_so_elsewhere(old, new):
    assert changed(WITHOUT_CLEARING.replace(old, new), "T816") is None


def test_a_scaler_names_the_optimizer_that_is_cleared():
    text = WITHOUT_CLEARING.replace("optimizer.step()", "scaler.step(optimizer)")
    assert changed(text, "T816") == ["optimizer.zero_grad()"]


FORWARD = """\
import torch

def forward(x):
    x = first(x).detach()
    return last(x)
"""


def cut(how, op, line):
    return (GraphCut(how=how, op=op, place=Source(file="train.py", line=line), parameters=("a",)),)


def test_what_cuts_the_graph_is_deleted_in_its_line():
    assert changed(FORWARD, "B203", cuts=cut("call", "detach", 4)) == ["x = first(x)"]
    data = FORWARD.replace(".detach()", ".data")
    assert changed(data, "B203", cuts=cut("call", "data", 4)) == ["x = first(x)"]


def test_two_cuts_in_one_line_are_left_to_the_author():
    text = FORWARD.replace("first(x).detach()", "first(x.detach()).detach()")
    assert changed(text, "B203", cuts=cut("call", "detach", 4)) is None
    assert changed(FORWARD, "B203", cuts=cut("call", "detach", 5)) is None


def test_a_draw_becomes_differentiable():
    text = FORWARD.replace("first(x).detach()", "Normal(*first(x)).sample()")
    assert changed(text, "B203", cuts=cut("draw", "normal", 4)) == ["x = Normal(*first(x)).rsample()"]
    written = FORWARD.replace("first(x).detach()", "torch.normal(*first(x))")
    assert changed(written, "B203", cuts=cut("draw", "normal", 4)) is None


def test_a_block_without_gradients_is_deleted_and_its_body_moves_to_the_left():
    text = (
        "import torch\nwith torch.no_grad():\n    # features\n    x = first(x)\n    x = x + 1\ny = last(x)\n"
    )
    source = source_of(text, "B203", cuts=cut("no_grad", "linear", 4))
    (edit,) = find_program_edits(source)
    after = apply_source_edits(text, [edit.change])
    assert after == "import torch\n# features\nx = first(x)\nx = x + 1\ny = last(x)\n"


def test_the_last_block_of_a_file_without_a_final_line_break_is_deleted_too():
    text = "import torch\nwith torch.no_grad():\n    x = first(x)"
    assert changed(text, "B203", cuts=cut("no_grad", "linear", 3)) == ["x = first(x)"]


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nwith torch.autocast('cpu'):\n    x = first(x)\n",
        "import torch\nwith torch.no_grad(), lock:\n    x = first(x)\n",
        'import torch\nwith torch.no_grad():\n    x = first(x, """a\n    b""")\n',
    ],
)
def test_a_block_with_another_purpose_or_with_a_text_that_would_move_is_left_to_the_author(text):
    assert changed(text, "B203", cuts=cut("no_grad", "linear", 3)) is None


def test_a_product_with_zero_is_no_call_that_can_be_deleted():
    assert changed(FORWARD, "B203", cuts=cut("zero", "detach", 4)) is None


def sorted_loop(order, name="order"):
    return f"""\
import torch
from torch.utils.data import DataLoader

{name} = {order}
for batch in {name}{"" if "Loader" in order else ".split(64)"}:
    loss = model(data[batch])
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("labels.argsort()", "torch.randperm(len(labels))"),
        ("torch.argsort(labels)", "torch.randperm(len(labels))"),
        ("torch.arange(count)", "torch.randperm(count)"),
        ("DataLoader(data, batch_size=8)", "DataLoader(data, batch_size=8, shuffle=True)"),
        ("DataLoader(data, shuffle=False)", "DataLoader(data, shuffle=True)"),
        ("torch.randperm(count)", None),
        ("DataLoader(data, shuffle=True)", None),
        ("DataLoader(data, sampler=mine)", None),
        ("torch.arange(2, count)", None),
    ],
)
def test_a_fixed_order_of_the_data_becomes_random(order, expected):
    assert changed(sorted_loop(order), "D911") == (expected and [f"order = {expected}"])


def test_a_loader_behind_a_progress_bar_is_shuffled():
    text = sorted_loop("DataLoader(data, 8)").replace("in order:", "in enumerate(tqdm(order)):")
    assert changed(text, "D911") == ["order = DataLoader(data, 8, shuffle=True)"]


def test_two_orders_in_one_loop_are_left_to_the_author():
    text = sorted_loop("labels.argsort()").replace("data[batch]", "data[other[batch]]")
    assert changed(f"import torch\nother = torch.arange(count)\n{text}", "D911") is None


LAYER = "from torch import nn\n\nclass Net(nn.Module):\n    def __init__(self):\n        self.lstm = nn.LSTM(4, 8)\n"


def rows_of(shape, predictions):
    use = InputUse(name="input", shape=shape, used=True, visible=True)
    dependence = Dependence(
        passes=1,
        noise=0.0,
        samples=shape[0],
        sample_axis=0,
        positions=None,
        position_axis=None,
        perturbations=(),
        inputs=(use,),
    )
    return {"dependence": dependence, "question": Question(predictions=predictions)}


def test_a_recurrent_layer_is_told_that_the_batch_comes_first():
    expected = ["self.lstm = nn.LSTM(4, 8, batch_first=True)"]
    assert changed(LAYER, "D901", **rows_of((8, 5), (8,))) == expected
    assert changed(LAYER, "D901", severity="info", **rows_of((8, 5), (8,))) == expected
    bare = LAYER.replace("nn.LSTM(4, 8)", "nn.Transformer()")
    expected = ["self.lstm = nn.Transformer(batch_first=True)"]
    assert changed(bare, "D901", **rows_of((8, 5), (8,))) == expected


@pytest.mark.parametrize(
    ("text", "shape", "predictions"),
    [
        (LAYER, (8, 1), (8,)),  # one sequence of eight positions
        (LAYER, (8,), (8,)),
        (LAYER, (8, 5), (40, 12)),  # a prediction for each position: time may come first
        (LAYER + "        self.second = nn.GRU(8, 8)\n", (8, 5), (8,)),
        (LAYER.replace("8)", "8, batch_first=False)"), (8, 5), (8,)),
    ],
)
def test_a_layer_stays_as_it_is_where_time_may_come_first_or_two_layers_can_be_meant(
    text, shape, predictions
):
    assert changed(text, "D901", **rows_of(shape, predictions)) is None


def test_the_optimizer_gets_the_whole_model_if_the_rest_was_never_trained():
    text = LOOP.replace("Adam(model.parameters()", "Adam(model[1].parameters()")
    expected = ["optimizer = torch.optim.Adam(model.parameters(), lr=0.1)"]
    assert changed(text, "D914", severity="info", untrained=("0.weight",)) == expected
    assert changed(text, "D914", severity="info") is None  # pretrained
    assert changed(LOOP, "D914", severity="info", untrained=("0.weight",)) is None
    two = text + "second = torch.optim.Adam(model[0].parameters())\n"
    assert changed(two, "D914", severity="info", untrained=("0.weight",)) is None


def test_a_number_that_inputs_are_multiplied_by_is_deleted_in_the_training_loop():
    text = LOOP.replace("model(inputs)", "model(inputs * 2000)")
    assert changed(text, "F109") == ["loss = -nn.functional.cross_entropy(model(inputs), labels)"]
    two = LOOP.replace("model(inputs)", "model(inputs * 2000, other(labels / 3))")
    assert changed(two, "F109") is None
    assert changed(LOOP, "F109") is None


SQUASHED = LOOP.replace(
    "-nn.functional.cross_entropy(model(inputs)", "nn.functional.cross_entropy(model(inputs).softmax(1)"
)


def squashed_source(text, squash, line=None):
    """A program whose loss reads what `squash` makes of the outputs; `line` is that of the call, where it is known."""
    loss = eval(
        f"lambda outputs, labels: nn.functional.cross_entropy({squash}, labels)", {"nn": nn, "torch": torch}
    )
    model = nn.Linear(4, 2)
    report = leadline.check(model, torch.randn(8, 4), torch.arange(8) % 2, loss, rehearse=False)
    assert [each.code for each in report.findings if each.code == "I309"]
    if line is not None:
        place = Source(file="train.py", line=line)
        ops = [replace(op, source=place) if op.name == "softmax" else op for op in report.trace.ops]
        report = replace(report, unsaved_trace=Unsaved(replace(report.trace, ops=tuple(ops))))
    source = source_of(text, "I309", severity="warning")
    return ProgramSource(file=source.file, report=report, lines=source.lines)


def unsquashed(source):
    edits = [edit.change.new for edit in find_program_edits(source) if edit.finding.code == "I309"]
    return [each.strip() for each in edits]


def test_a_softmax_before_the_loss_is_deleted_in_the_training_loop():
    expected = ["loss = nn.functional.cross_entropy(model(inputs), labels)"]
    assert unsquashed(squashed_source(SQUASHED, "outputs.softmax(1)")) == expected
    text = SQUASHED.replace("model(inputs).softmax(1)", "torch.softmax(model(inputs), dim=1)")
    assert unsquashed(squashed_source(text, "torch.softmax(outputs, dim=1)")) == expected
    elsewhere = "def predict(inputs):\n    return model(inputs).softmax(1)\n\n\n" + SQUASHED
    assert unsquashed(squashed_source(elsewhere, "outputs.softmax(1)")) == expected


def test_a_softmax_is_left_to_the_author_where_two_can_be_meant():
    text = SQUASHED + "    shown = model(inputs).softmax(1)\n"
    assert unsquashed(squashed_source(text, "outputs.softmax(1)")) == []


def test_a_softmax_whose_line_is_known_is_deleted_there():
    text = SQUASHED + "    shown = model(inputs).softmax(1)\n"
    known = squashed_source(text, "outputs.softmax(1)", line=7)
    assert unsquashed(known) == ["loss = nn.functional.cross_entropy(model(inputs), labels)"]


def test_a_finding_without_a_line_of_the_program_changes_nothing():
    for code in PROGRAM_EDITS:
        assert changed("import torch\nx = 1\n", code, untrained=("a",)) is None


def test_a_loop_in_another_file_is_not_changed():
    source = source_of(LOOP, "D909")
    far = {"the loss": (Source(file="other.py", line=8),)}
    moved = ProgramSource(file=source.file, report=source.report, lines=far)
    assert list(find_program_edits(moved)) == []
