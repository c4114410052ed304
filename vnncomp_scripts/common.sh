# shellcheck shell=bash disable=SC2034
# Sourced by the three scripts: the interpreter, the device, and how arguments are checked. It starts nothing and ends nothing.

TOOL_DIR=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P) || exit 2
VENV=${POLYTRITON_VENV:-$TOOL_DIR/.venv}
DEVICE_FILE=$VENV/polytriton-device

fail() {
    printf 'polytriton: %s\n' "$1" >&2
    exit 2
}

check_version() {
    [ "$1" = v1 ] || fail "these scripts speak version v1 of the protocol, not '$1'"
}

# The interpreter: POLYTRITON_PYTHON, else the one install_tool.sh made, else python3.
find_python() {
    if [ -n "${POLYTRITON_PYTHON:-}" ]; then
        PYTHON=$POLYTRITON_PYTHON
    elif [ -x "$VENV/bin/python" ]; then
        PYTHON=$VENV/bin/python
    else
        PYTHON=python3
    fi
}

# The device: POLYTRITON_DEVICE, else the one install_tool.sh found, else the CPU.
find_device() {
    DEVICE=${POLYTRITON_DEVICE:-}
    if [ -z "$DEVICE" ] && [ -r "$DEVICE_FILE" ]; then
        read -r DEVICE <"$DEVICE_FILE" || DEVICE=
    fi
    DEVICE=${DEVICE:-cpu}
}

# polytriton ARGUMENT...: the command line in this interpreter, installed or from this folder.
set_command() {
    export PYTHONPATH="$TOOL_DIR${PYTHONPATH:+:$PYTHONPATH}"
    POLYTRITON=("$PYTHON" -m polytriton.cli)
}
