#!/usr/bin/env bash
# Loads the newest run of ./client_launch.sh and trains it for one more epoch. A body server must run; it need not be the
# one of before. Words after the script's name go to `torso resume` (see `torso resume --help`).
#
#   TORSO_RUN_DIR    the run to go on with                                             (the newest of runs/split-*)
#   TORSO_EPOCHS     epochs to add                                                                                (1)
#   TORSO_CLIENTS    another number of clients                                                          (as before)
#   TORSO_DEVICES    other devices by client rank, e.g. "cuda:2 cuda:3"                                 (as before)
#   TORSO_SERVER     URL of any worker of another server                                                (as before)
#   TORSO_RUNS       folder for runs                                                                            (runs)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/scripts/launch_common.sh"

ensure_setup
run="${TORSO_RUN_DIR:-$(newest_run)}"
[ -n "$run" ] || fail "there is no run in $RUNS yet; make one with ./client_launch.sh"
arguments=(--epochs "${TORSO_EPOCHS:-1}")
if [ -n "${TORSO_CLIENTS:-}" ]; then arguments+=(--clients "$TORSO_CLIENTS"); fi
# several words are meant to be several arguments
# shellcheck disable=SC2206
if [ -n "${TORSO_DEVICES:-}" ]; then arguments+=(--device $TORSO_DEVICES); fi
if [ -n "${TORSO_SERVER:-}" ]; then arguments+=(--server "$TORSO_SERVER"); fi
say "going on with $run"
exec "$TORSO" resume "$run" "${arguments[@]}" "$@"
