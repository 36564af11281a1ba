#!/bin/sh
# Print the path of a Python >= 3.11 that can make virtual environments: the one named as
# argument, else the machine's default, else a versioned one.
set -u

suits() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

if [ $# -gt 0 ]; then
    if suits "$1"; then
        command -v "$1"
        exit 0
    fi
    echo "make: PYTHON=$1 is not a Python >= 3.11 with venv and ensurepip" >&2
    exit 1
fi

# A name on the PATH may be a launcher that only complains, so each one is tried.
for candidate in python3 python3.13 python3.12 python3.11 python; do
    if suits "$candidate"; then
        command -v "$candidate"
        exit 0
    fi
done

cat >&2 <<MESSAGE
make: no Python >= 3.11 with venv was found on PATH.
Install one (Debian, Ubuntu: 'sudo apt install python3 python3-venv'; Fedora: 'sudo dnf install
python3'), or name it: make PYTHON=/path/to/python3.12 test
MESSAGE
exit 1
