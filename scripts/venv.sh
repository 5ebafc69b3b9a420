#!/bin/sh
# Makes a virtual environment that holds exactly one lock file, and this package on top:
#   scripts/venv.sh VENV LOCK editable|FILE.whl
# uv is used where it is on PATH, else pip.
set -eu
venv=$1 lock=$2 package=$3
python=${PYTHON:-python3}

fail() {
    echo "endstop: $1" >&2
    exit 2
}

command -v "$python" >/dev/null 2>&1 || fail "there is no '$python' here. Name a Python: make PYTHON=/path/to/python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "Python 3.11 or newer is needed, and '$python' is $("$python" --version 2>&1). Name another: make PYTHON=python3.12"
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "'$python' has no venv or ensurepip. On Debian and Ubuntu: apt-get install python3-venv"

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"

if command -v uv >/dev/null 2>&1; then
    install() { uv pip install --quiet --python "$venv/bin/python" "$@"; }
else
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$venv/bin/python" -m ensurepip >/dev/null
    install() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
fi

install --require-hashes -r "$lock"
case $package in
editable) install --no-deps --no-build-isolation -e . ;;
*) install --no-deps "$package" ;;
esac
