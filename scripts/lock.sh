#!/bin/sh
# Writes the lock files from pyproject.toml: versions and hashes, for every platform and Python 3.11 and newer.
#   scripts/lock.sh UV [--upgrade]
# Without --upgrade, versions that still fit stay as they are.
set -eu
uv=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

compile() {
    "$uv" pip compile pyproject.toml --quiet --universal --python-version 3.11 --no-header --no-annotate \
        --no-emit-index-url --no-emit-find-links "$@"
}

mkdir -p requirements
compile --generate-hashes --all-extras --group dev -o requirements/dev.txt "$@"
compile --generate-hashes -c requirements/dev.txt -o requirements/base.txt "$@"
compile --generate-hashes --extra langchain --extra langgraph --group build --group parity -c requirements/dev.txt \
    -o requirements/parity.txt "$@"
compile --generate-hashes --group bench --group build --all-extras -o requirements/bench.txt "$@"

# The lowest versions of what the package itself names, under the test tools of today.
compile --all-extras --resolution lowest-direct -o "$work/lowest-direct.txt"
compile --generate-hashes --all-extras --group test -c "$work/lowest-direct.txt" --group build -o requirements/lowest.txt "$@"
