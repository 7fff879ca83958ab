#!/usr/bin/env bash
# Starts two body workers in the background and returns when they are ready.
#
#     ./server_launch.sh          start          ./server_launch.sh stop          end them
#
# Without anything set: the model `mini`, two workers on this machine, ports 8700 and 8701, reachable from here only.
#
#   TORSO_MODEL      mini | gpt2 | gpt2-medium | gpt2-large | gpt2-xl | folder in Hugging Face layout      (mini)
#   TORSO_INIT       pretrained | random: read the base weights, or draw them                             (pretrained)
#   TORSO_LAYERS     first:last of the body, e.g. 2:10                                  (all but two at either end)
#   TORSO_WORKERS    worker processes; worker r listens at port + r                                              (2)
#   TORSO_DEVICES    devices by rank, e.g. "cuda:0 cuda:1"; auto takes the GPUs in order, or the CPU          (auto)
#   TORSO_HOST       address to listen at; 0.0.0.0 for other machines (no authentication: see the README) (127.0.0.1)
#   TORSO_PORT       port of worker 0                                                                         (8700)
#   TORSO_RUNS       folder for runs; PID file and log go to its subfolder server/                            (runs)
#
# GPT-2 small on the first two of four GPUs, for clients on the other two:
#     TORSO_MODEL=gpt2 TORSO_LAYERS=2:10 TORSO_DEVICES="cuda:0 cuda:1" ./server_launch.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/scripts/launch_common.sh"

STATE="$RUNS/server"
PID_FILE="$STATE/server.pid"
LOG="$STATE/server.log"

# The process of an earlier start, empty when it has ended (another process may have its number by now).
running() {
    local pid
    pid="$(cat "$PID_FILE" 2>/dev/null)" || return 0
    if ps -p "$pid" -o args= 2>/dev/null | grep -q "torso.* serve "; then echo "$pid"; fi
}

stop() {
    local pid waited=0
    pid="$(running)"
    if [ -z "$pid" ]; then
        say "no body server of ours is running"
        rm -f "$PID_FILE"
        return
    fi
    kill -TERM "$pid"
    while kill -0 "$pid" 2>/dev/null; do
        sleep 0.2
        waited=$((waited + 1))
        # its workers end with it, however it ends
        if [ "$waited" -eq 350 ]; then kill -KILL "$pid" 2>/dev/null || true; fi
    done
    rm -f "$PID_FILE"
    say "the body server (process $pid) has stopped"
}

start() {
    local pid arguments
    arguments=(--model "${TORSO_MODEL:-mini}" --init "${TORSO_INIT:-pretrained}" --workers "${TORSO_WORKERS:-2}"
        --host "${TORSO_HOST:-127.0.0.1}" --port "${TORSO_PORT:-8700}")
    if [ -n "${TORSO_LAYERS:-}" ]; then arguments+=(--layers "$TORSO_LAYERS"); fi
    # several words are meant to be several arguments
    # shellcheck disable=SC2206
    if [ -n "${TORSO_DEVICES:-}" ]; then arguments+=(--device $TORSO_DEVICES); fi
    pid="$(running)"
    if [ -n "$pid" ]; then
        if [ "${arguments[*]}" = "$(cat "$STATE/arguments")" ]; then
            say "already running as process $pid; $(grep '^ready:' "$LOG" || echo "see $LOG")"
            return
        fi
        fail "a body server with other settings runs as process $pid; end it first with ./server_launch.sh stop"
    fi
    ensure_setup
    mkdir -p "$STATE"
    echo "${arguments[*]}" >"$STATE/arguments"
    : >"$LOG"
    nohup "$TORSO" serve "${arguments[@]}" >>"$LOG" 2>&1 </dev/null &
    pid=$!
    echo "$pid" >"$PID_FILE"
    await_ready "$pid"
}

await_ready() {
    local code
    until grep -q '^ready:' "$LOG"; do
        if ! kill -0 "$1" 2>/dev/null; then
            code=0
            wait "$1" || code=$?
            rm -f "$PID_FILE"
            tail -n 3 "$LOG" >&2
            say "the body server did not start; its log is $LOG"
            exit "$([ "$code" -eq 0 ] && echo 1 || echo "$code")"
        fi
        sleep 0.2
    done
    grep '^ready:' "$LOG"
    say "process $1, log $LOG; ./server_launch.sh stop ends it"
}

case "${1:-start}" in
    start) start ;;
    stop) stop ;;
    *) fail "unknown word '$1'; use ./server_launch.sh [start|stop]" ;;
esac
