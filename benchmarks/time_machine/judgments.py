"""What reading the source of a release says about each wiring finding in a type without a known bug."""

from __future__ import annotations

from typing import Literal, NamedTuple

Verdict = Literal["bug", "true here", "false"]
"""`bug`: a bug of the release. `true here`: what the finding says is so, in this batch or on this machine, and is no
bug of the release. `false`: it is not so."""


class Judgment(NamedTuple):
    """One type and one finding; `report` is a public issue or pull request, "" if none was found."""

    verdict: Verdict
    why: str
    report: str = ""


SAME_POSITION = (
    "the class compares logits and labels at the same position, because the model around it shifts the inputs; the "
    "sweep gives it the input as labels"
)
STREAMS = (
    "the streams that predict further ahead are viewed as (positions, samples) although they are (samples, positions), "
    "so relative positions are taken from other samples"
)

JUDGMENTS: dict[tuple[str, str], Judgment] = {
    ("hf/moshi", "shifted-targets"): Judgment(
        "bug",
        "`MoshiForCausalLM` shifts logits and labels and hands them to a loss that shifts them again",
        "huggingface/transformers#36928",
    ),
    ("hf/cohere_asr", "shifted-targets"): Judgment(
        "bug",
        "`CohereAsrForConditionalGeneration` is in the table above; the sweep builds it from another configuration",
        "huggingface/transformers#46894",
    ),
    ("hf/prophetnet", "mixed-samples"): Judgment("bug", STREAMS, "huggingface/transformers#17455"),
    ("hf/xlm-prophetnet", "mixed-samples"): Judgment("bug", STREAMS, "huggingface/transformers#17455"),
    ("hf/transfo-xl", "mixed-samples"): Judgment(
        "bug",
        "`losses`, which should be one row per sample, comes in the order of the clusters of the adaptive softmax "
        "(`keep_order` is False); the loss itself, their mean, is right",
    ),
    ("hf/mra", "discarded-results"): Judgment(
        "true here",
        "without its CUDA kernel, MRA returns zeros in place of attention, so queries, keys and values are not used",
    ),
    ("hf/gptsan-japanese", "shifted-targets"): Judgment(
        "true here",
        "the class compares logits and labels at the same position, because it also fills in masked tokens; the sweep "
        "gives it the input as labels",
    ),
    ("x-transformers/macaron", "shifted-targets"): Judgment(
        "false",
        "the probe drew for the first changed position the tokens that it had already, and took it for one that does "
        "not see its own input; repaired since",
    ),
    ("hf/trocr", "shifted-targets"): Judgment("true here", SAME_POSITION),
    ("hf/speech_to_text_2", "shifted-targets"): Judgment("true here", SAME_POSITION),
}
