"""LoRA and DoRA on linear layers; knows no model beyond the names of its linear layers."""
