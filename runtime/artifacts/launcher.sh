#!/bin/sh
# HeteroFleet agent: a Python program in an archive behind these lines.
# It is unpacked once into PEX_ROOT; later starts go straight there.
if [ -z "${PEX_ROOT:-}" ]; then
    case "$(readlink -f "$0")" in
        /opt/heterofleet/*) PEX_ROOT=/opt/heterofleet/cache && export PEX_ROOT ;;
    esac
    # Somebody other than root asks: it is unpacked for this once, and pex need not warn of that.
    [ -w "${PEX_ROOT:-/}" ] || [ "$(id -u)" = 0 ] || export PYTHONWARNINGS=ignore:PEX_ROOT
fi
for python in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9; do
    if "$python" -ISc 'import sys; sys.exit(not (3, 9) <= sys.version_info[:2] <= (3, 14))' </dev/null 2>/dev/null; then
        exec "$python" "$0" "$@"
    fi
done
echo "heterofleet-agent: no Python 3.9 to 3.14 on PATH ($PATH); install one, for example python3.11" >&2
exit 1
