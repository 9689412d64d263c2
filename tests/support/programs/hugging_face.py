"""A Hugging Face Trainer script: a small GPT-2 from its config, a dataset of blocks, arguments."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments, set_seed

set_seed(0)
config = GPT2Config(
    vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
)
model = GPT2LMHeadModel(config)
text = torch.randint(0, 64, (100,)).repeat(30)
train_dataset = [{"input_ids": text[i : i + 32], "labels": text[i : i + 32]} for i in range(0, 2000, 16)]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=12,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        warmup_steps=4,
        learning_rate=1e-3,
        logging_steps=4,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=train_dataset)
    trainer.remove_callback(PrinterCallback)  # it prints how long the training took
    result = trainer.train()
print("loss", result.training_loss)
print("weights", sum(each.double().sum().item() for each in model.parameters()))
