#!/usr/bin/env bash
# Trains one epoch with two clients against the workers that ./server_launch.sh started. Each call is a new run in a
# new directory, runs/split-001, runs/split-002, …; ./load_launch.sh goes on with the newest one.
#
# Without anything set: an adapter of `mini` on the built-in data, as configs/launch.toml says. Words after the script's name go to
# `torso train` (see `torso train --help`).
#
#   TORSO_CONFIG     settings file                                                                (configs/launch.toml)
#   TORSO_MODEL      as for the server                                                     (what the settings file says)
#   TORSO_INIT       as for the server                                                                       (likewise)
#   TORSO_DATA       demo | e2e | e2e:PATH of the official zip, its folder or CSV files | jsonl:PATH           (likewise)
#   TORSO_TOKENIZER  folder of a tokenizer other than the model's                                             (none)
#   TORSO_CLIENTS    client ranks on this machine; they take the GPUs in order                                     (2)
#   TORSO_DEVICES    devices by client rank, e.g. "cuda:2 cuda:3"; auto takes the GPUs in order, or the CPU    (auto)
#   TORSO_SERVER     URL of any worker                                               (http://127.0.0.1:$TORSO_PORT)
#   TORSO_PORT       port of a server on this machine                                                          (8700)
#   TORSO_EPOCHS     epochs                                                                                       (1)
#   TORSO_RUNS       folder for runs                                                                            (runs)
#
# GPT-2 small on real E2E, the recipe of the LoRA paper:
#     TORSO_MODEL=gpt2 ./server_launch.sh
#     TORSO_CONFIG=configs/e2e-gpt2-lora.toml TORSO_DATA=e2e:e2e-dataset.zip ./client_launch.sh
# The same with the body on the first two of four GPUs and the clients on the other two:
#     TORSO_MODEL=gpt2 TORSO_DEVICES="cuda:0 cuda:1" ./server_launch.sh
#     TORSO_CONFIG=configs/e2e-gpt2-lora.toml TORSO_DATA=e2e:e2e-dataset.zip TORSO_DEVICES="cuda:2 cuda:3" ./client_launch.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/scripts/launch_common.sh"

next_run() {
    local number=1
    while [ -e "$RUNS/split-$(printf %03d "$number")" ]; do number=$((number + 1)); done
    echo "$RUNS/split-$(printf %03d "$number")"
}

ensure_setup
arguments=(--config "${TORSO_CONFIG:-$ROOT/configs/launch.toml}" --strategy split --clients "${TORSO_CLIENTS:-2}"
    --server "${TORSO_SERVER:-http://127.0.0.1:${TORSO_PORT:-8700}}" --epochs "${TORSO_EPOCHS:-1}")
if [ -n "${TORSO_MODEL:-}" ]; then arguments+=(--model "$TORSO_MODEL"); fi
if [ -n "${TORSO_INIT:-}" ]; then arguments+=(--init "$TORSO_INIT"); fi
if [ -n "${TORSO_DATA:-}" ]; then arguments+=(--data "$TORSO_DATA"); fi
if [ -n "${TORSO_TOKENIZER:-}" ]; then arguments+=(--tokenizer "$TORSO_TOKENIZER"); fi
# several words are meant to be several arguments
# shellcheck disable=SC2206
if [ -n "${TORSO_DEVICES:-}" ]; then arguments+=(--device $TORSO_DEVICES); fi

run="$(next_run)"
before="$(newest_run)"
if [ -n "$before" ]; then
    say "$before holds an earlier run (./load_launch.sh goes on with it); this is a new one in $run"
else
    say "the run goes to $run"
fi
exec "$TORSO" train "${arguments[@]}" --run-dir "$run" "$@"
