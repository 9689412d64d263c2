"""Fine-tuning of small Hugging Face models, in the shapes of the public `run_*` scripts.

`python fine_tuning.py TASK` uses a Trainer with evaluation, schedule and warm-up, `--loop accelerate` a loop of its own
in the shape of the `_no_trainer` scripts, `--lora` trains only low-rank adapters (needs peft).
"""

import argparse
import copy
import hashlib
import tempfile

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PrinterCallback,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    get_scheduler,
    set_seed,
)

VOCABULARY, LENGTH, EXAMPLES, STEPS = 64, 16, 160, 24
BERT = BertConfig(
    vocab_size=VOCABULARY,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=LENGTH,
    num_labels=4,
)
GPT2 = GPT2Config(
    vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
)
T5 = T5Config(
    vocab_size=VOCABULARY,
    d_model=32,
    d_kv=16,
    d_ff=64,
    num_layers=2,
    num_heads=2,
    decoder_start_token_id=0,
)
VIT = ViTConfig(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    image_size=16,
    patch_size=4,
    num_labels=4,
)


def sentences(*shape):
    """Tokens in which each follows from the one before, with some noise."""
    tokens = torch.randint(1, VOCABULARY, shape)
    for place in range(1, shape[-1]):
        is_regular = torch.rand(shape[:-1]) < 0.9
        following = (5 * tokens[..., place - 1] + 7) % VOCABULARY
        tokens[..., place] = torch.where(is_regular, following, tokens[..., place])
    return tokens


def causal():
    tokens = sentences(EXAMPLES, LENGTH)
    return GPT2LMHeadModel(GPT2), {"input_ids": tokens, "labels": tokens}


def masked():
    tokens = sentences(EXAMPLES, LENGTH)
    is_masked = torch.rand(tokens.shape) < 0.15
    labels = tokens.masked_fill(~is_masked, -100)
    return BertForMaskedLM(BERT), {"input_ids": tokens.masked_fill(is_masked, 0), "labels": labels}


def classification():
    tokens = sentences(EXAMPLES, LENGTH)
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (EXAMPLES, 1))
    mask = (torch.arange(LENGTH) < lengths).long()
    data = {"input_ids": tokens * mask, "attention_mask": mask, "labels": tokens[:, 0] % 4}
    return BertForSequenceClassification(BERT), data


def tokens():
    inputs = sentences(EXAMPLES, LENGTH)
    return BertForTokenClassification(BERT), {"input_ids": inputs, "labels": inputs % 4}


def answers():
    inputs = torch.randint(2, VOCABULARY, (EXAMPLES, LENGTH))
    starts = torch.randint(0, LENGTH - 2, (EXAMPLES,))
    inputs[torch.arange(EXAMPLES), starts] = 1
    data = {"input_ids": inputs, "start_positions": starts, "end_positions": starts + 2}
    config = copy.deepcopy(BERT)
    config.num_labels = 2  # scores for the first and for the last word of the answer
    return BertForQuestionAnswering(config), data


def choice():
    inputs = sentences(EXAMPLES, 2, LENGTH)
    labels = torch.randint(0, 2, (EXAMPLES,))
    inputs[torch.arange(EXAMPLES), labels, 0] = 1
    return BertForMultipleChoice(BERT), {"input_ids": inputs, "labels": labels}


def translation():
    inputs = sentences(EXAMPLES, LENGTH)
    return T5ForConditionalGeneration(T5), {"input_ids": inputs, "labels": (inputs + 3) % VOCABULARY}


def images():
    labels = torch.randint(0, 4, (EXAMPLES,))
    pixels = torch.randn(4, 3, 16, 16)[labels] + 0.5 * torch.randn(EXAMPLES, 3, 16, 16)
    return ViTForImageClassification(VIT), {"pixel_values": pixels, "labels": labels}


TASKS = {
    each.__name__: each
    for each in (causal, masked, classification, tokens, answers, choice, translation, images)
}


def with_adapters(model):
    from peft import LoraConfig, get_peft_model  # only where adapters are asked for

    settings = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.05, target_modules="all-linear")
    return get_peft_model(model, settings)


def train_with_trainer(model, train, held_out):
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=STEPS,
            per_device_train_batch_size=16,
            learning_rate=2e-3,
            lr_scheduler_type="cosine",
            warmup_steps=4,
            eval_strategy="steps",
            eval_steps=STEPS // 2,
            logging_steps=STEPS // 2,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=train, eval_dataset=held_out)
        trainer.remove_callback(PrinterCallback)  # it prints how long the training took
        result = trainer.train()
        print("loss", result.training_loss, "held out", trainer.evaluate()["eval_loss"])


def train_with_accelerate(model, train, held_out):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    decayed = [each for each in model.parameters() if each.requires_grad and each.ndim > 1]
    others = [each for each in model.parameters() if each.requires_grad and each.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=2e-3)
    loader, evaluation = DataLoader(train, batch_size=8, shuffle=True), DataLoader(held_out, batch_size=16)
    schedule = get_scheduler("linear", optimizer, num_warmup_steps=2, num_training_steps=STEPS)
    model, optimizer, loader, evaluation, schedule = accelerator.prepare(
        model, optimizer, loader, evaluation, schedule
    )
    for epoch in range(2):
        model.train()
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        model.eval()
        losses = []
        for batch in evaluation:
            with torch.no_grad():
                losses.append(accelerator.gather_for_metrics(model(**batch).loss.repeat(16)))
        accelerator.print("epoch", epoch, "held out", torch.cat(losses).mean().item())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--loop", choices=("trainer", "accelerate"), default="trainer")
    parser.add_argument("--lora", action="store_true")
    options = parser.parse_args()
    set_seed(0)
    model, columns = TASKS[options.task]()
    if options.lora:
        model = with_adapters(model)
    rows = [{name: values[place] for name, values in columns.items()} for place in range(EXAMPLES)]
    train = train_with_trainer if options.loop == "trainer" else train_with_accelerate
    train(model, rows[:128], rows[128:])
    digest = hashlib.sha256(
        b"".join(each.detach().contiguous().numpy().tobytes() for each in model.parameters())
    )
    print("weights", digest.hexdigest())


if __name__ == "__main__":
    main()
