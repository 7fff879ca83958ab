"""GPT-2 in plain PyTorch: blocks, stages, weights; knows neither parallelism nor adapters nor HTTP."""
