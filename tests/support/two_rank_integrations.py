"""Run by torchrun in test_ranks_and_precision.py: each library trains on two processes, watched and not."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from tests.support.library_loops import accelerate_loop, huggingface_train, lightning_fit, weights

FOLDER = Path(sys.argv[1])


def numbers(found: list[torch.Tensor]) -> list[float]:
    return torch.cat([each.flatten().double() for each in found]).tolist()


def of_lightning() -> dict[str, Any]:
    from leadline.integrations.lightning import LeadlineCallback

    callback = LeadlineCallback(store=FOLDER / "lightning.leadline", every=4)
    two = {"devices": 2, "strategy": "ddp"}
    plain = numbers(weights(lightning_fit(FOLDER, [], **two)))
    watched = numbers(weights(lightning_fit(FOLDER, [callback], **two)))
    return {"plain": plain, "watched": watched, "trouble": callback.watch.trouble}


def of_transformers() -> dict[str, Any]:
    from leadline.integrations.huggingface import LeadlineCallback

    callback = LeadlineCallback(store=FOLDER / "transformers.leadline", every=4)
    plain = numbers(weights(huggingface_train(FOLDER, [])[0]))
    watched = numbers(weights(huggingface_train(FOLDER, [callback])[0]))
    return {"plain": plain, "watched": watched, "trouble": callback.watch.trouble}


def of_accelerate() -> dict[str, Any]:
    plain = numbers(weights(accelerate_loop(None, watched=False)))
    watched = numbers(weights(accelerate_loop(FOLDER / "accelerate.leadline", watched=True)))
    return {"plain": plain, "watched": watched, "trouble": ""}  # the loop itself asks for it


def main() -> None:
    found = {"accelerate": of_accelerate(), "transformers": of_transformers(), "lightning": of_lightning()}
    Path(FOLDER, f"{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
