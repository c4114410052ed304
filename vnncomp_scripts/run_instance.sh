#!/usr/bin/env bash
# run_instance.sh v1 CATEGORY ONNX VNNLIB RESULTS TIMEOUT
# Answers one instance within TIMEOUT seconds. The first line of RESULTS is sat, unsat, unknown, timeout or error; for sat the
# counterexample follows. RESULTS is written in any case, whole or not at all. Exit code 0 unless it cannot be written.
set -u
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

[ $# -eq 6 ] || fail "usage: run_instance.sh v1 CATEGORY ONNX VNNLIB RESULTS TIMEOUT"
check_version "$1"
ONNX=$3 VNNLIB=$4 RESULTS=$5 TIMEOUT=$6
find_python
find_device
set_command

MADE=$(mktemp -- "$(dirname -- "$RESULTS")/.polytriton.XXXXXX") || fail "cannot write to the folder of $RESULTS"
chmod 644 -- "$MADE"
CHILD=

# Puts the result in its place: the first line as given, or the whole answer where none is given.
finish() {
    if [ -n "$1" ]; then
        printf '%s\n' "$1" >"$MADE"
    fi
    mv -f -- "$MADE" "$RESULTS" || fail "cannot write $RESULTS"
    exit 0
}

# Told to stop: our own child is stopped, and no other process.
# shellcheck disable=SC2317,SC2329 # reached by the trap
stopped() {
    [ -z "$CHILD" ] || kill -TERM "$CHILD" 2>/dev/null
    finish timeout
}
trap stopped TERM INT HUP

# Half a second for the last steps, and at least half a second for the work.
LIMIT=$(awk -v t="$TIMEOUT" 'BEGIN { if (t !~ /^[0-9]+([.][0-9]*)?$/ || t + 0 <= 0) exit 1; l = t - 0.5; print (l < 0.5 ? 0.5 : l) }') || {
    printf 'polytriton: %s is no timeout\n' "$TIMEOUT" >&2
    finish error
}
GUARD=()
if command -v timeout >/dev/null 2>&1; then
    GUARD=(timeout -k 0.2 "$LIMIT") # where there is none, the verifier's own clock must do
fi

${GUARD[@]+"${GUARD[@]}"} "${POLYTRITON[@]}" verify --semantics real --device "$DEVICE" --memory "${POLYTRITON_MEMORY:-4G}" \
    --timeout "$LIMIT" -- "$ONNX" "$VNNLIB" </dev/null >"$MADE" &
CHILD=$!
wait "$CHILD"
CODE=$?
CHILD=

FIRST=
read -r FIRST <"$MADE"
case $CODE:$FIRST in
0:sat | 0:unsat | 0:unknown | 0:timeout) finish '' ;;
124:* | 137:*) finish timeout ;; # the guard's
*) finish error ;;
esac
