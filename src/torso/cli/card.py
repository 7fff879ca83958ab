"""The README.md of what is exported: where it comes from, how it was made, how well it does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

import torso
from torso.adapters.config import AdapterConfig
from torso.config import RunConfig
from torso.model.config import SIZES
from torso.records import EvaluationRecord

_SHOWN = ("epochs", "global_batch_size", "micro_batch_size", "learning_rate", "schedule", "warmup_steps",
          "max_grad_norm", "weight_decay", "dropout", "adapter_dropout", "seed", "dtype")  # fmt: skip


def model_card(
    kind: str,
    config: RunConfig,
    adapter: AdapterConfig | None,
    base: Mapping[str, str],
    step: int | None,
    scores: Sequence[EvaluationRecord],
) -> str:
    """Markdown with the hub's front matter.

    `kind` is peft, merged or hf; `base` the base's fingerprints by part; without `step` no run is known.
    """
    library = "peft" if kind == "peft" else "transformers"
    front = [f"library_name: {library}", "pipeline_tag: text-generation", "tags: [torso, gpt2]"]
    front += [f"base_model: {hub_name(config)}"] if hub_name(config) else []
    what = {"peft": "An adapter", "merged": "GPT-2 with an adapter merged in", "hf": "GPT-2, all weights trained"}[kind]
    trained = f", trained on `{_public(config.data)}`, step {step}" if step is not None else ""
    lines = ["---", *front, "---", "", f"# {what} from Torso", "", f"{what} on `{_public(config.model)}`{trained}.", ""]
    lines += _table("Settings", _settings(config, adapter, base) | (_training(config) if step is not None else {}))
    for record in scores:
        lines += _table(_title(record), {"perplexity": f"{record.perplexity:.4f}"} | _rounded(record.scores))
    lines += [f"Written by Torso {torso.__version__}.", ""]
    return "\n".join(lines)


def _settings(config: RunConfig, adapter: AdapterConfig | None, base: Mapping[str, str]) -> dict[str, str]:
    blocks = [base[name] for name in base if name != "embeddings"]
    rows = {"base's embeddings, SHA-256": base["embeddings"]}
    rows |= {f"its {len(blocks)} blocks, SHA-256 of theirs": hashlib.sha256("".join(blocks).encode()).hexdigest()}
    rows |= {"base's weights": config.init}
    if adapter is not None:
        rows |= {"adapter": adapter.kind + (", rslora" if adapter.rslora else "")}
        rows |= {"layers": ", ".join(adapter.modules or adapter.targets)}
        rows |= {} if adapter.modules else {"rank": str(adapter.lora_rank), "alpha": f"{adapter.alpha:g}"}
    return rows


def _training(config: RunConfig) -> dict[str, str]:
    started = {"started from the adapter, SHA-256": config.init_adapter_sha256 or ""} if config.init_adapter else {}
    return started | {name.replace("_", " "): str(getattr(config, name)) for name in _SHOWN}


def _title(record: EvaluationRecord) -> str:
    return f"Scores on {record.subset}" + (f", {record.decoding}" if record.decoding else ", greedy decoding")


def _rounded(scores: Mapping[str, float]) -> dict[str, str]:
    return {name: f"{value:.4f}" for name, value in scores.items()}


def _table(title: str, rows: Mapping[str, str]) -> list[str]:
    return [f"## {title}", "", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items()), ""]


def _public(name: str) -> str:
    """A path says nothing to others, and may say too much: its last part will do."""
    kind, colon, path = name.partition(":")
    return f"{kind}{colon}{path.rstrip('/').rpartition('/')[2]}" if colon else name.rstrip("/").rpartition("/")[2]


def hub_name(config: RunConfig) -> str | None:
    """What the hub calls the base; None when it is not published there."""
    return f"openai-community/{config.model}" if config.model in SIZES and config.init == "pretrained" else None


def tokenizer_settings(positions: int) -> str:
    """tokenizer_config.json: what transformers' AutoTokenizer needs beside the tokenizer's own files."""
    end = "<|endoftext|>"
    settings = {"tokenizer_class": "GPT2TokenizerFast", "model_max_length": positions, "add_prefix_space": False}
    return json.dumps(settings | {"bos_token": end, "eos_token": end, "unk_token": end}, indent=2) + "\n"
