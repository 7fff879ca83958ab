"""The README.md of what is exported: where it comes from, how it was made, how well it does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import torso
from torso.adapters.config import AdapterConfig
from torso.config import RunConfig
from torso.records import EvaluationRecord

_SHOWN = ("epochs", "global_batch_size", "micro_batch_size", "learning_rate", "schedule", "warmup_steps",
          "max_grad_norm", "weight_decay", "dropout", "adapter_dropout", "seed", "dtype")  # fmt: skip


def model_card(
    kind: str,
    config: RunConfig,
    adapter: AdapterConfig | None,
    base: str,
    step: int | None,
    scores: Sequence[EvaluationRecord],
) -> str:
    """Markdown with the hub's front matter. `kind` is peft, merged or hf; `base` the base's fingerprint."""
    library = "peft" if kind == "peft" else "transformers"
    front = [f"library_name: {library}", "pipeline_tag: text-generation", "tags: [torso, gpt2]"]
    front += [f"base_model: {_hub_name(config.model)}"] if _hub_name(config.model) else []
    what = {"peft": "An adapter", "merged": "GPT-2 with an adapter merged in", "hf": "GPT-2"}[kind]
    trained = f", trained on `{_public(config.data)}`" + (f", step {step}" if step is not None else "")
    lines = ["---", *front, "---", "", f"# {what} from Torso", "", f"{what} on `{_public(config.model)}`{trained}.", ""]
    lines += _table("Settings", _settings(config, adapter, base))
    for record in scores:
        lines += _table(_title(record), {"perplexity": f"{record.perplexity:.4f}"} | _rounded(record.scores))
    lines += [f"Written by Torso {torso.__version__}.", ""]
    return "\n".join(lines)


def _settings(config: RunConfig, adapter: AdapterConfig | None, base: str) -> dict[str, str]:
    rows = {"base weights (SHA-256 of the embeddings)": base, "initial weights": config.init}
    if adapter is not None:
        rows |= {"adapter": adapter.kind + (", rslora" if adapter.rslora else "")}
        rows |= {"layers": ", ".join(adapter.modules or adapter.targets)}
        rows |= {} if adapter.modules else {"rank": str(adapter.lora_rank), "alpha": f"{adapter.alpha:g}"}
    return rows | {name.replace("_", " "): str(getattr(config, name)) for name in _SHOWN}


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


def _hub_name(model: str) -> str:
    return f"openai-community/{model}" if model.startswith("gpt2") and "/" not in model else ""


def tokenizer_settings(positions: int) -> str:
    """tokenizer_config.json: what transformers' AutoTokenizer needs beside the tokenizer's own files."""
    end = "<|endoftext|>"
    settings = {"tokenizer_class": "GPT2TokenizerFast", "model_max_length": positions, "add_prefix_space": False}
    return json.dumps(settings | {"bos_token": end, "eos_token": end, "unk_token": end}, indent=2) + "\n"
