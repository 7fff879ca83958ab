# Sourced by the launch scripts: where things are, and the virtual environment, set up when it is not there.
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
RUNS="${TORSO_RUNS:-$ROOT/runs}"
TORSO="$ROOT/.venv/bin/torso"
ME="$(basename "$0")"

say() { echo "$ME: $*" >&2; }

fail() {
    say "$*"
    exit 2
}

ensure_setup() {
    [ -x "$TORSO" ] || make --no-print-directory -C "$ROOT" setup >&2
}

# newest_run: the run-directory with the highest number, empty when there is none
newest_run() {
    local folder newest=
    for folder in "$RUNS"/split-[0-9][0-9][0-9]; do
        if [ -f "$folder/run.json" ]; then newest="$folder"; fi
    done
    echo "$newest"
}
