"""The sweep over third-party architectures builds them, reports failures, and can itself fail."""

from __future__ import annotations

import signal

import pytest
import torch
from torch import nn

import leadline
from benchmarks.result_files import load
from benchmarks.zoo import collection, page, worker
from benchmarks.zoo.__main__ import select_names
from benchmarks.zoo.architecture import Architecture, energy
from benchmarks.zoo.explanations import EXPLAINED
from benchmarks.zoo.huggingface import model_types
from benchmarks.zoo.measure import measure
from benchmarks.zoo.small_configs import LAYERS, condense_layer_kinds, parts, reduced_value, small
from benchmarks.zoo.vision import smallest
from leadline import Case

FAST = ("torch/lstm", "hf/bert")
DIFFICULT = (  # experts, state spaces, windows, convolutions, audio, encoder-decoders and other special structures
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
IGNORE_WARNINGS = pytest.mark.filterwarnings("ignore")


def architecture_of(build) -> Architecture:
    return Architecture(name="test/one", origin="test", build=build)


@IGNORE_WARNINGS
@pytest.mark.parametrize("name", FAST)
def test_a_stock_architecture_runs_and_is_left_as_it_was_found(name):
    cell = measure(collection.find_architecture(name))
    assert (cell["status"], cell["verdict"], cell["left_behind"]) == ("ran", "trains", [])
    assert cell["known"] == cell["ops"] > 0


@pytest.mark.slow
@IGNORE_WARNINGS
@pytest.mark.parametrize("name", DIFFICULT)
def test_a_chosen_architecture_gets_the_findings_of_the_stored_sweep_and_is_left_as_it_was_found(name):
    cell = measure(collection.find_architecture(name))
    assert (cell["status"], cell["left_behind"], cell["unknown"]) == ("ran", [], [])
    stored = load("zoo")["cases"][name]
    assert [each[0] for each in cell["findings"]] == [each[0] for each in stored["findings"]]


class TracesInForward(nn.Linear):
    """Traces another model in its forward, which is not allowed inside a trace."""

    def forward(self, x):
        leadline.trace(nn.Linear(2, 1), torch.ones(3, 2), loss=energy)
        return super().forward(x)


def test_a_refusal_is_distinguished_from_a_crash():
    cell = measure(architecture_of(lambda: Case(TracesInForward(2, 1), torch.randn(4, 2), loss=energy)))
    assert cell["status"] == "refused"
    assert "one trace at a time" in cell["reason"]


def test_a_failure_to_build_is_not_a_crash_of_leadline():
    def build() -> Case:
        raise OSError("no file on this machine")

    cell = measure(architecture_of(build))
    assert (cell["status"], cell["reason"]) == ("not built", "OSError: no file on this machine")


def test_an_error_in_leadline_is_a_crash_with_its_location(monkeypatch):
    def raise_error(case, **options):
        raise KeyError("internal")

    monkeypatch.setattr("leadline.trace", raise_error)
    cell = measure(architecture_of(lambda: Case(nn.Linear(2, 1), torch.randn(4, 2), loss=energy)))
    assert cell["status"] == "crashed"
    assert "KeyError" in cell["reason"]


def test_a_model_that_is_changed_by_the_check_is_noticed(monkeypatch):
    from leadline.api import check

    def check_and_change_mode(case, **options):
        report = check(case, **options)
        case.model.train(not case.model.training)
        return report

    monkeypatch.setattr("leadline.check", check_and_change_mode)
    cell = measure(architecture_of(lambda: Case(nn.Linear(2, 1), torch.randn(4, 2), loss=energy)))
    assert cell["left_behind"] == ["model.training: value"]


class BrokenConnection:
    """A connection to a worker that breaks after the request."""

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


class DeadProcess:
    def __init__(self, code: int) -> None:
        self.exitcode = code

    def join(self, timeout: float = 0) -> None:
        pass

    def is_alive(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("code", "status"), [(-signal.SIGPROF, "too slow"), (-signal.SIGSEGV, "crashed"), (1, "crashed")]
)
def test_an_architecture_that_kills_its_process_gets_a_cell(code, status):
    process = worker.WorkerProcess(worker.measure)
    process._process, process._connection = DeadProcess(code), BrokenConnection(code)
    assert process.measure("any")["status"] == status
    assert process._process is None


@pytest.mark.parametrize(
    ("name", "stock", "expected"),
    [
        ("hidden_size", 4096, 64),
        ("num_hidden_layers", 32, LAYERS),
        ("num_attention_heads", 32, 4),
        ("num_key_value_heads", 8, 2),
        ("num_key_value_heads", 1, None),  # no size is increased
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
    assert reduced_value(name, stock) == expected


def test_a_shortened_list_of_layer_kinds_keeps_one_of_each_in_order():
    assert condense_layer_kinds(["a"] * 6 + ["b"] + ["a"] * 5) == ["a", "a", "a", "b"]


def test_a_small_configuration_keeps_the_spread_of_its_weights():
    """The product of range and sqrt(width) determines the signal."""
    transformers = pytest.importorskip("transformers")
    stock, config = transformers.BertConfig(), small(transformers.BertConfig)
    assert config.hidden_size == 64
    assert config.initializer_range * config.hidden_size**0.5 == pytest.approx(
        stock.initializer_range * stock.hidden_size**0.5
    )


def test_special_tokens_are_inside_the_small_vocabulary():
    transformers = pytest.importorskip("transformers")
    config = small(transformers.GPT2Config)
    assert max(config.bos_token_id, config.eos_token_id, config.pad_token_id) < config.vocab_size == 99
    assert len(parts(config)) == 1


def test_every_model_type_has_one_head_and_there_are_hundreds():
    heads = model_types()
    assert len(heads) > 500
    assert heads["bert"][0] == "masked"
    assert heads["bart"][0] == "seq2seq"
    assert heads["llama"][0] == "causal"


def test_the_smallest_model_of_a_family_is_the_one_whose_name_says_so():
    assert smallest(["convnext_base", "convnext_atto", "convnext_tiny"]) == "convnext_atto"
    assert smallest(["res50", "res34x"]) == "res50"


def test_only_architectures_without_a_result_are_measured_by_default():
    cells = {
        "cases": {"a/1": {"status": "ran", "verdict": "poor", "findings": [["W603", "warning", "", ""]]}}
    }
    known = ["a/1", "a/2", "b/1"]
    assert select_names(cells, known, [], []) == ["a/2", "b/1"]
    assert select_names(cells, known, ["a"], []) == ["a/1", "a/2"]
    assert select_names(cells, known, [], ["W603"]) == ["a/1"]


def test_no_architecture_of_the_stored_sweep_crashed_or_was_changed():
    cells = load("zoo")["cases"]
    assert [name for name, cell in cells.items() if cell["status"] == "crashed"] == []
    assert [name for name, cell in cells.items() if cell.get("left_behind")] == []
    assert sum(cell["status"] == "ran" for cell in cells.values()) >= 200


def test_every_finding_of_the_stored_sweep_is_explained_and_nothing_else_is():
    cells = load("zoo")["cases"]
    findings = {(name, each[0]) for name, cell in cells.items() for each in cell.get("findings", ())}
    assert findings == {(name, code) for name, codes in EXPLAINED.items() for code in codes}


def test_a_finding_without_an_explanation_shows_on_the_page():
    cell = {"status": "ran", "findings": [["X999", "warning", "here", "it | is `odd`"]]}
    assert "**not explained**" in page.findings({"test/one": cell})
