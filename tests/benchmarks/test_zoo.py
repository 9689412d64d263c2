"""The sweep over other people's architectures: what it builds, what it says of failures, and that it can fail."""

from __future__ import annotations

import signal

import pytest
import torch
from torch import nn

import leadline
from benchmarks.result_files import load
from benchmarks.zoo import collection, page, worker
from benchmarks.zoo.__main__ import wanted
from benchmarks.zoo.architecture import Exhibit, energy
from benchmarks.zoo.explanations import EXPLAINED
from benchmarks.zoo.huggingface import chosen
from benchmarks.zoo.measure import measure
from benchmarks.zoo.small_configs import LAYERS, condensed, parts, reduced, small
from benchmarks.zoo.vision import smallest
from leadline import Case

QUICK = ("torch/lstm", "hf/bert")
CHOSEN = (  # one of each kind of trouble: experts, states, windows, convolutions, sound, graphs of their own, two sides
    *(
        "hf/gpt_oss",
        "hf/mamba",
        "hf/swin",
        "hf/mobilevit",
        "hf/wav2vec2",
        "hf/t5",
        "hf/deberta-v2",
        "hf/gemma2",
    ),
    *("hf/rwkv", "hf/fnet", "hf/videomae", "hf/llama"),
)
UNINFORMED = pytest.mark.filterwarnings("ignore")  # those of other people's models


def made_of(build) -> Exhibit:
    return Exhibit(name="test/one", origin="test", build=build)


@UNINFORMED
@pytest.mark.parametrize("name", QUICK)
def test_a_stock_architecture_runs_and_is_left_as_it_was_found(name):
    cell = measure(collection.exhibit(name))
    assert (cell["status"], cell["verdict"], cell["left_behind"]) == ("ran", "trains", [])
    assert cell["known"] == cell["ops"] > 0


@pytest.mark.slow
@UNINFORMED
@pytest.mark.parametrize("name", CHOSEN)
def test_a_chosen_architecture_gets_the_findings_of_the_stored_sweep_and_is_left_as_it_was_found(name):
    cell = measure(collection.exhibit(name))
    assert (cell["status"], cell["left_behind"], cell["unknown"]) == ("ran", [], [])
    stored = load("zoo")["cases"][name]
    assert [each[0] for each in cell["findings"]] == [each[0] for each in stored["findings"]]


class Nosy(nn.Linear):
    """Traces another model in its own forward, which can be done once but not inside of a trace."""

    def forward(self, x):
        leadline.trace(nn.Linear(2, 1), torch.ones(3, 2), loss=energy)
        return super().forward(x)


def test_what_leadline_refuses_is_told_from_what_crashes():
    cell = measure(made_of(lambda: Case(Nosy(2, 1), torch.randn(4, 2), loss=energy)))
    assert cell["status"] == "refused"
    assert "one trace at a time" in cell["reason"]


def test_what_a_package_cannot_build_is_no_crash_of_ours():
    def build() -> Case:
        raise OSError("no file on this machine")

    cell = measure(made_of(build))
    assert (cell["status"], cell["reason"]) == ("not built", "OSError: no file on this machine")


def test_an_error_of_ours_is_a_crash_with_its_place(monkeypatch):
    def broken(case, **options):
        raise KeyError("ours")

    monkeypatch.setattr("leadline.trace", broken)
    cell = measure(made_of(lambda: Case(nn.Linear(2, 1), torch.randn(4, 2), loss=energy)))
    assert cell["status"] == "crashed"
    assert "KeyError" in cell["reason"]


def test_a_model_that_is_changed_by_the_check_is_noticed(monkeypatch):
    from leadline.api import check

    def careless(case, **options):
        report = check(case, **options)
        case.model.train(not case.model.training)
        return report

    monkeypatch.setattr("leadline.check", careless)
    cell = measure(made_of(lambda: Case(nn.Linear(2, 1), torch.randn(4, 2), loss=energy)))
    assert cell["left_behind"] == ["model.training: value"]


class Line:
    """A worker's line that dies after the question."""

    def __init__(self, code: int) -> None:
        self.code = code

    def send(self, name: str) -> None:
        pass

    def poll(self, seconds: float) -> bool:
        return True

    def recv(self):
        raise EOFError

    def close(self) -> None:
        pass


class Dead:
    def __init__(self, code: int) -> None:
        self.exitcode = code

    def join(self, timeout: float = 0) -> None:
        pass

    def is_alive(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("code", "status"), [(-signal.SIGPROF, "too slow"), (-signal.SIGSEGV, "crashed"), (1, "crashed")]
)
def test_an_exhibit_that_takes_its_process_along_gets_a_cell(code, status):
    asked = worker.Keeper()
    asked._process, asked._line = Dead(code), Line(code)
    assert asked.ask("any")["status"] == status
    assert asked._process is None


@pytest.mark.parametrize(
    ("name", "stock", "expected"),
    [
        ("hidden_size", 4096, 64),
        ("num_hidden_layers", 32, LAYERS),
        ("num_attention_heads", 32, 4),
        ("num_key_value_heads", 8, 2),
        ("num_key_value_heads", 1, None),  # nothing is made larger
        ("intermediate_size", 11008, 128),
        ("vocab_size", 32000, 99),
        ("num_channels", 3, None),
        ("use_cache", True, None),
        ("hidden_sizes", [64, 128, 320, 512], [8, 16, 40, 64]),
        ("depths", [3, 4, 6, 3], [1, 1, 1, 1]),
        ("conv_kernel", [10, 3, 3], None),
        ("pad_token_id", 50256, None),
    ],
)
def test_a_size_is_reduced_by_what_its_name_says(name, stock, expected):
    assert reduced(name, stock) == expected


def test_a_list_of_kinds_of_layers_keeps_one_of_each_in_order():
    assert condensed(["a"] * 6 + ["b"] + ["a"] * 5) == ["a", "a", "a", "b"]


def test_a_small_configuration_keeps_the_spread_of_its_weights():
    """Range x sqrt(width) is what signals see."""
    transformers = pytest.importorskip("transformers")
    stock, made = transformers.BertConfig(), small(transformers.BertConfig)
    assert made.hidden_size == 64
    assert made.initializer_range * made.hidden_size**0.5 == pytest.approx(
        stock.initializer_range * stock.hidden_size**0.5
    )


def test_special_tokens_are_in_the_small_vocabulary_and_apart():
    transformers = pytest.importorskip("transformers")
    made = small(transformers.GPT2Config)
    assert max(made.bos_token_id, made.eos_token_id, made.pad_token_id) < made.vocab_size == 99
    assert len(parts(made)) == 1


def test_every_model_type_has_one_head_and_there_are_hundreds():
    found = chosen()
    assert len(found) > 500
    assert found["bert"][0] == "masked"
    assert found["bart"][0] == "seq2seq"
    assert found["llama"][0] == "causal"


def test_the_smallest_model_of_a_family_is_the_one_whose_name_says_so():
    assert smallest(["convnext_base", "convnext_atto", "convnext_tiny"]) == "convnext_atto"
    assert smallest(["res50", "res34x"]) == "res50"


def test_only_what_has_no_result_is_measured_unless_asked_for():
    cells = {
        "cases": {"a/1": {"status": "ran", "verdict": "poor", "findings": [["W603", "warning", "", ""]]}}
    }
    known = ["a/1", "a/2", "b/1"]
    assert wanted(cells, known, [], []) == ["a/2", "b/1"]
    assert wanted(cells, known, ["a"], []) == ["a/1", "a/2"]
    assert wanted(cells, known, [], ["W603"]) == ["a/1"]


def test_no_architecture_of_the_stored_sweep_crashed_or_was_changed():
    cells = load("zoo")["cases"]
    assert [name for name, cell in cells.items() if cell["status"] == "crashed"] == []
    assert [name for name, cell in cells.items() if cell.get("left_behind")] == []
    assert sum(cell["status"] == "ran" for cell in cells.values()) >= 200


def test_every_loud_finding_of_the_stored_sweep_is_explained_and_nothing_else_is():
    cells = load("zoo")["cases"]
    loud = {(name, each[0]) for name, cell in cells.items() for each in cell.get("findings", ())}
    assert loud == {(name, code) for name, codes in EXPLAINED.items() for code in codes}


def test_a_finding_without_an_explanation_shows_on_the_page():
    cell = {"status": "ran", "findings": [["X999", "warning", "here", "it | is `odd`"]]}
    assert "**not explained**" in page.findings({"test/one": cell})
