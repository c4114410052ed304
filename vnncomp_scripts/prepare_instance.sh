#!/usr/bin/env bash
# prepare_instance.sh v1 CATEGORY ONNX VNNLIB
# Compiles the network into the cache and checks that the property fits it; analyses nothing. Exit code 0: run_instance.sh
# may be called; anything else: the network or the property is not supported, or the files are not there.
set -u
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

[ $# -eq 4 ] || fail "usage: prepare_instance.sh v1 CATEGORY ONNX VNNLIB"
check_version "$1"
find_python
set_command
exec "${POLYTRITON[@]}" verify --prepare --semantics real -- "$3" "$4" </dev/null
