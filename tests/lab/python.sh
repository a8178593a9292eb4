#!/usr/bin/env bash
# Makes the virtual environment in $1 from setup.cfg; installs Debian's Python where none fits.
set -euo pipefail
venv=$1

fits() { "$1" -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    local name
    for name in python3.11 python3.12 python3.13 python3; do
        if command -v "$name" >/dev/null && fits "$name"; then
            command -v "$name"
            return
        fi
    done
}

python=$(find_python)
if [ -z "$python" ]; then
    if ! command -v apt-get >/dev/null; then
        echo "python.sh: found no Python 3.11 or later with ensurepip, and no apt-get: install one" >&2
        exit 1
    fi
    echo "installing python3 and python3-venv" >&2
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends python3 python3-venv git ca-certificates >/dev/null
    python=$(find_python)
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
echo "installing HeteroFleet and its development tools into $venv" >&2
"$venv/bin/pip" install --quiet --disable-pip-version-check --editable '.[dev]'
