"""An edit becomes a change of the user's own line where exactly one line can be meant, and does the same there."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from leadline.case import Case
from leadline.fixes import all_fixes
from leadline.fixes._engine.candidates import find_candidates
from leadline.fixes._engine.source_edits import apply_source_edits, edit_source
from leadline.fixes._engine.verify import make_context, treated_case
from leadline.records import Edit

NETS = """\
import leadline
import torch
import torch.nn.functional as F
from torch import nn

RATE = 1e-2


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.squash = nn.Linear(16, 64), nn.Linear(64, 8), nn.Softmax(dim=-1)


class Function(Body):
    def forward(self, x):
        logits = self.last(self.first(x).relu())
        return F.softmax(logits, dim=-1)


class Method(Body):
    def forward(self, x):
        return self.last(self.first(x).relu()).softmax(-1)


class Module(Body):
    def forward(self, x):
        é = self.last(self.first(x).relu())
        return self.squash(
            é,
        )


class Twice(Body):
    def forward(self, x):
        return F.softmax(F.softmax(self.last(self.first(x).relu()), dim=-1), dim=-1)


def listed():
    return nn.Sequential(
        nn.Linear(16, 64),
        nn.ReLU(),
        nn.Linear(64, 8),
        nn.Sigmoid(),
    )


def first_of_list():
    return nn.Sequential(nn.Tanh(), nn.Linear(16, 8))


class Spread(Body):
    def forward(self, x):
        given = (self.last(self.first(x)),)
        return F.softmax(*given, dim=-1)


def make(build):
    torch.manual_seed(0)
    model = build()
    batch = torch.randn(32, 16), torch.randint(8, (32,))
    return leadline.Case(model, *batch, F.cross_entropy, torch.optim.Adam(model.parameters(), lr=RATE))
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()

    def load(text: str, name: str) -> Case:
        path = tmp_path / "nets.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("nets", path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "nets", module)
        spec.loader.exec_module(module)
        return module.make(getattr(module, name))

    return load


@pytest.mark.parametrize(
    ("name", "says", "new"),
    [
        ("Function", "Delete the softmax in nets.py:18", "        return logits\n"),
        ("Method", "Delete the softmax in nets.py:23", "        return self.last(self.first(x).relu())\n"),
        ("Module", "Delete the squash in nets.py:29", "        return é\n"),
        ("listed", "Delete the Sigmoid in nets.py:43", "        nn.Linear(64, 8),\n"),
    ],
)
def test_a_softmax_is_deleted_in_the_line_that_calls_it_and_the_outputs_are_those_of_the_recipe(
    load, name, says, new
):
    case = load(NETS, name)
    context = make_context(case)
    (candidate,) = [each for each in find_candidates(context, all_fixes()) if each.fix == "raw-logits"]
    change = edit_source(candidate.edits[0], context, [Path("nets.py")])
    assert (change.says, change.new) == (says, new)
    edited = load(apply_source_edits(NETS, [change]), name)
    with torch.no_grad():
        assert torch.equal(edited.model(case.inputs), treated_case(context, candidate).model(case.inputs))


def test_a_learning_rate_is_changed_where_its_constant_is_defined(load):
    context = make_context(load(NETS, "Function"))
    change = edit_source(Edit(action="rate", options={"factor": 0.1}), context)
    assert (change.old, change.new) == ("RATE = 1e-2\n", "RATE = 0.001\n")
    assert change.says == "Set the learning rate to 0.001 in nets.py:6"
    assert change.diff == "-RATE = 1e-2\n+RATE = 0.001"


def test_where_two_lines_could_be_meant_none_is_changed(load):
    twice = make_context(load(NETS, "Twice"))
    reroute = Edit(action="reroute", options={"calls": "softmax", "to": "identity"})
    assert edit_source(reroute, twice) is None
    text = NETS + "\n\nOTHER = dict(lr=1e-2)\n"
    assert (
        edit_source(Edit(action="rate", options={"factor": 0.1}), make_context(load(text, "Function")))
        is None
    )


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("lr=RATE))", "lr=1e-2))", "lr=0.001))"),
        ("lr=RATE))", "1e-2))", "0.001))"),
        ("def make(build):", "def make(build, RATE=1e-2):", "RATE=0.001):"),
    ],
)
def test_a_learning_rate_is_changed_where_it_is_an_argument_or_a_default(load, old, new, expected):
    text = NETS.replace("RATE = 1e-2\n", "").replace(old, new)
    text = text if "RATE=" in new else text.replace("RATE", "1e-2")
    change = edit_source(
        Edit(action="rate", options={"factor": 0.1}), make_context(load(text, "Function")), [Path("nets.py")]
    )
    assert expected in change.new


def test_a_weight_decay_is_changed_where_it_is_written(load):
    text = NETS.replace("lr=RATE))", "lr=RATE, weight_decay=5))")
    context = make_context(load(text, "Function"))
    change = edit_source(Edit(action="decay", options={"most": 0.1, "spared": ()}), context)
    assert change.says.startswith("Set the weight decay to 0.1 in nets.py:")
    assert "weight_decay=0.1))" in change.new
    assert edit_source(Edit(action="decay", options={"most": 0.1, "spared": ("a",)}), context) is None


@pytest.mark.parametrize(
    ("before", "call"), [("", "F.cross_entropy"), ("criterion = nn.CrossEntropyLoss()\n", "criterion")]
)
def test_a_loss_whose_line_is_not_known_is_rewritten_for_a_shift_and_not_for_the_axes_of_the_output(
    load, before, call
):
    text = f"{NETS}\n\n{before}\n\ndef loss_of(logits, targets):\n    return {call}(logits, targets)\n"
    context = make_context(load(text, "Method"))
    shift = Edit(action="shift", options={"steps": -1, "axis": 1})
    change = edit_source(shift, context, [Path("nets.py")])
    assert change.new == f"    return {call}(logits[:, :-1], targets[:, 1:])\n"
    squeeze = Edit(action="last-axis", options={"kind": "squeeze"})
    assert edit_source(squeeze, context, [Path("nets.py")]) is None


def test_an_optimizer_of_a_second_instance_gets_the_parameters_of_the_first(load):
    text = NETS.replace("model = build()", "model = Method()").replace(
        "Adam(model.parameters()", "Adam(Method().parameters()"
    )
    context = make_context(load(text, "Method"))
    change = edit_source(Edit(action="train", options={"names": ()}), context, [Path("nets.py")])
    assert "torch.optim.Adam(model.parameters(), lr=RATE)" in change.new
    twice = text.replace("    batch =", "    other = Method()\n    batch =")
    context = make_context(load(twice, "Method"))
    assert edit_source(Edit(action="train", options={"names": ()}), context, [Path("nets.py")]) is None


def test_the_first_layer_of_a_list_is_deleted_with_the_comma_behind_it(load):
    context = make_context(load(NETS, "first_of_list"))
    change = edit_source(
        Edit(action="swap", where="0", options={"to": "identity"}), context, [Path("nets.py")]
    )
    assert change.new == "    return nn.Sequential(nn.Linear(16, 8))\n"


def test_a_layer_that_is_one_of_several_of_its_kind_is_not_deleted(load):
    text = NETS.replace("nn.ReLU(),", "nn.Sigmoid(),")
    context = make_context(load(text, "listed"))
    swap = Edit(action="swap", where="3", options={"to": "identity"})
    assert edit_source(swap, context, [Path("nets.py")]) is None


def test_a_call_whose_input_is_not_written_out_is_not_deleted(load):
    reroute = Edit(action="reroute", options={"calls": "softmax", "to": "identity"})
    assert edit_source(reroute, make_context(load(NETS, "Spread"))) is None


def test_a_file_that_is_no_longer_python_is_not_changed(load):
    context = make_context(load(NETS, "Function"))
    Path("nets.py").write_text("def broken(:\n")
    reroute = Edit(action="reroute", options={"calls": "softmax", "to": "identity"})
    assert edit_source(reroute, context) is None
    product = Edit(action="scale-call", options={"calls": "softmax", "place": 0, "factor": 0.5})
    assert edit_source(product, context) is None


def test_a_product_that_the_pass_did_not_compute_is_not_scaled(load):
    context = make_context(load(NETS, "Function"))
    assert (
        edit_source(
            Edit(action="scale-call", options={"calls": "matmul", "place": 0, "factor": 0.5}), context
        )
        is None
    )


def test_an_action_that_deletes_no_call_changes_no_line(load):
    context = make_context(load(NETS, "Function"))
    assert edit_source(Edit(action="thaw", where="last", options={"to": "identity"}), context) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("lr=RATE))", "lr=float('1e-2')))"),
        ("torch.optim.Adam(model.parameters(), lr=RATE)", "None"),
        (
            "torch.optim.Adam(model.parameters(), lr=RATE)",
            "torch.optim.Adam([{'params': [p], 'lr': RATE * k} for k, p in enumerate(model.parameters(), 1)])",
        ),
    ],
)
def test_a_learning_rate_that_no_single_number_sets_is_not_rewritten(load, old, new):
    context = make_context(load(NETS.replace(old, new), "Function"))
    assert edit_source(Edit(action="rate", options={"factor": 0.1}), context, [Path("nets.py")]) is None


def test_a_weight_decay_that_differs_between_groups_is_not_rewritten(load):
    groups = (
        "torch.optim.AdamW([{'params': [p], 'weight_decay': k} for k, p in enumerate(model.parameters())])"
    )
    text = NETS.replace("torch.optim.Adam(model.parameters(), lr=RATE)", groups)
    decay = Edit(action="decay", options={"most": 0.1, "spared": ()})
    assert edit_source(decay, make_context(load(text, "Function")), [Path("nets.py")]) is None


def test_an_optimizer_of_a_list_of_parameters_is_not_rewritten(load):
    text = NETS.replace("Adam(model.parameters()", "Adam(list(model.parameters())")
    train = Edit(action="train", options={"names": ()})
    assert edit_source(train, make_context(load(text, "Method")), [Path("nets.py")]) is None


LOSS_OF = "\n\ndef loss_of(logits, targets):\n    return F.cross_entropy({})\n"


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ("*(logits, targets)", -1),
        ("logits[:, 2:], targets", -1),
        ("logits, targets", 1),
        ("logits, targets", 2),
    ],
)
def test_a_loss_whose_slices_are_not_those_of_a_shift_by_one_is_not_rewritten(load, given, steps):
    context = make_context(load(NETS + LOSS_OF.format(given), "Method"))
    shift = Edit(action="shift", options={"steps": steps, "axis": 1})
    assert edit_source(shift, context, [Path("nets.py")]) is None


def test_a_loss_that_reads_logits_already_is_not_renamed(load):
    text = (NETS + LOSS_OF.format("logits, targets")).replace("*batch, F.cross_entropy,", "*batch, loss_of,")
    context = make_context(load(text, "Method"))
    assert edit_source(Edit(action="log-softmax"), context, [Path("nets.py")]) is None
    squeeze = Edit(action="last-axis", options={"kind": "squeeze"})
    assert "F.cross_entropy(logits.squeeze(-1), targets)" in edit_source(squeeze, context).new
