#!/bin/sh
# Makes the virtual environment $1 with pip in it, or says what is missing and how to get it.
# Is not: an installer of packages. PYTHON names the interpreter.
set -eu

venv=$1
python=${PYTHON:-python3}

fail() {
  printf 'ccl_lab: %s\n' "$@" >&2
  exit 1
}

command -v "$python" >/dev/null 2>&1 || fail "$python was not found." "Install Python 3.10 or newer, or name one: make PYTHON=/path/to/python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  fail "$("$python" --version) is too old: Python 3.10 or newer is needed." "Name another one: make PYTHON=python3.12"
"$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
  fail "the headers of $python (Python.h) are missing." "Debian and Ubuntu: apt install python3-dev"
command -v "${CXX:-c++}" >/dev/null 2>&1 || command -v g++ >/dev/null 2>&1 || command -v clang++ >/dev/null 2>&1 ||
  fail "no C++ compiler was found." "Debian and Ubuntu: apt install g++ (10 or newer; or clang 12 or newer)"

if "$python" -c 'import venv, ensurepip' 2>/dev/null; then
  "$python" -m venv "$venv"
elif command -v uv >/dev/null 2>&1; then
  uv venv --seed --python "$python" "$venv"
elif "$python" -c 'import venv, pip' 2>/dev/null; then
  "$python" -m venv --without-pip "$venv"
  "$python" -m pip --python "$venv/bin/python" install pip
else
  fail "$python cannot make a virtual environment: its venv and ensurepip modules are missing." \
    "Debian and Ubuntu: apt install python3-venv. Or install uv. Or use any environment that has pip: make VENV=/path/to/it"
fi
