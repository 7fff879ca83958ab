"""Decoding against transformers' `generate`: `python benchmarks/decoding_speed.py --model DIR --data e2e:ZIP`.

The same weights (a Hugging Face folder, say of `torso export --format merged`), the same prompts of the test split, the
same batches, one process, alternating. Without the n-gram rule the outputs are compared token for token; where they
differ, both are scored anew by one forward pass, and a difference of less than 1e-4 counts as a tie.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2LMHeadModel

from torso.data.encoding import encode_prompts
from torso.data.sources import load
from torso.data.tokenizer import Tokenizer
from torso.evaluation.decoding import DecodingConfig, decode
from torso.evaluation.model import CachedModel, LocalMiddle
from torso.model.config import Cuts
from torso.model.hub import tokenizer_folder
from torso.model.stages import Body, Head, Tail
from torso.model.weights import FolderWeights, build

Outputs = list[list[int]]


def main() -> None:
    """Compare, time, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=tokenizer_folder("mini"))
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--data", default="demo")
    parser.add_argument("--num", type=int)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--beams", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tokenizer = Tokenizer(options.tokenizer or options.model)
    ours, theirs = own_model(options.model), GPT2LMHeadModel.from_pretrained(options.model, dtype=torch.float32).eval()
    groups = load(options.data).split("test")[: options.num]
    prompts = encode_prompts(groups, tokenizer, ours.head.wpe.num_embeddings, 64)
    end = tokenizer.eos_id
    for decoding in ("greedy", "beam"):
        config = DecodingConfig(
            decoding=decoding, beams=options.beams, no_repeat_ngram=0, batch_size=options.batch_size
        )
        sides: dict[str, Callable[[], Outputs]] = {
            "torso": lambda config=config: decode(ours, prompts, end, config),  # type: ignore[misc]
            "transformers": lambda config=config: generate(theirs, prompts, end, config),  # type: ignore[misc]
        }
        compare(decoding, sides, prompts, end, theirs, config, options.repeat)


def own_model(folder: Path) -> CachedModel:
    """The whole model in this process, cut as by default."""
    source = FolderWeights(folder)
    cuts = Cuts.default(source.config.n_layer)
    body = LocalMiddle(build(Body, source, cuts).eval(), cuts)
    return CachedModel(build(Head, source, cuts), body, build(Tail, source, cuts), cuts, torch.device("cpu"))


@torch.no_grad()
def generate(model: Any, prompts: Sequence[Sequence[int]], end: int, config: DecodingConfig) -> Outputs:
    """transformers' outputs without their end token, in batches of prompts of like length, padded on the left."""
    order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), i))
    outputs: Outputs = [[] for _ in prompts]
    for start in range(0, len(order), config.batch_size):
        chosen = order[start : start + config.batch_size]
        longest = max(len(prompts[i]) for i in chosen)
        ids = torch.tensor([[end] * (longest - len(prompts[i])) + list(prompts[i]) for i in chosen])
        mask = torch.tensor([[0] * (longest - len(prompts[i])) + [1] * len(prompts[i]) for i in chosen])
        found = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=config.max_new_tokens,
            num_beams=config.beams if config.decoding == "beam" else 1,
            length_penalty=config.length_penalty,
            do_sample=False,
            eos_token_id=end,
            pad_token_id=end,
        )
        for i, tokens in zip(chosen, found[:, longest:].tolist(), strict=True):
            outputs[i] = tokens[: tokens.index(end)] if end in tokens else tokens
    return outputs


def compare(
    name: str,
    sides: dict[str, Callable[[], Outputs]],
    prompts: Sequence[Sequence[int]],
    end: int,
    model: Any,
    config: DecodingConfig,
    repeat: int,
) -> None:
    """Alternate, and print the ratio of medians and the divergences."""
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    outputs: dict[str, Outputs] = {}
    for _ in range(repeat):
        for side, work in sides.items():
            begun = time.perf_counter()
            outputs[side] = work()
            seconds[side].append(time.perf_counter() - begun)
    medians = {side: statistics.median(values) for side, values in seconds.items()}
    print(f"{name}: " + ", ".join(f"{side} {value:.2f} s" for side, value in medians.items()), end="; ")
    print(f"{medians['transformers'] / medians['torso']:.2f} times as fast", end="; ")
    pairs = [
        pair for pair in zip(prompts, outputs["torso"], outputs["transformers"], strict=True) if pair[1] != pair[2]
    ]
    power = config.length_penalty if config.decoding == "beam" else 0.0
    gaps = [score(model, p, a, end, config, power) - score(model, p, b, end, config, power) for p, a, b in pairs]
    ties = sum(abs(gap) < 1e-4 for gap in gaps)
    print(f"{len(pairs)} of {len(prompts)} outputs differ, {ties} of them with scores within 1e-4", flush=True)
    for (_, a, b), gap in list(zip(pairs, gaps, strict=True))[:5]:
        place = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        print(f"  at token {place} of {len(a)} and {len(b)}: score differs by {gap:.2e}")


@torch.no_grad()
def score(
    model: Any, prompt: Sequence[int], output: Sequence[int], end: int, config: DecodingConfig, power: float
) -> float:
    """Log-probability of an output (with its end token, where it has one) / length ** power."""
    tokens = [*output, end][: config.max_new_tokens]
    ids = torch.tensor([[*prompt, *tokens]])
    chances = model(ids).logits[0, len(prompt) - 1 : -1].log_softmax(dim=-1)
    return float(chances[torch.arange(len(tokens)), torch.tensor(tokens)].sum()) / len(tokens) ** power


if __name__ == "__main__":
    main()
