#!/usr/bin/env bash
# install_tool.sh v1
# Installs polytriton and what it needs into .venv beside this folder (or POLYTRITON_VENV). May be run again.
set -eu
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

[ $# -eq 1 ] || fail "usage: install_tool.sh v1"
check_version "$1"

BASE=${POLYTRITON_BASE_PYTHON:-python3}
"$BASE" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || fail "$BASE is not Python 3.10 or newer: name one with POLYTRITON_BASE_PYTHON"
[ -x "$VENV/bin/python" ] || "$BASE" -m venv -- "$VENV"
"$VENV/bin/python" -m pip install --upgrade -- "$TOOL_DIR"
"$VENV/bin/python" -c 'import torch; print("cuda" if torch.cuda.is_available() else "cpu")' >"$DEVICE_FILE"
"$VENV/bin/python" -m polytriton.runtime.loops # compiled now, not while an instance's clock runs
"$VENV/bin/python" -m polytriton.cli --version
printf 'polytriton: device %s\n' "$(cat -- "$DEVICE_FILE")"
