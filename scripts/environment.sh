# Sourced by scripts/build, scripts/demo and scripts/test, from the repository root: `.venv` with everything built and installed.
# One build folder, build/venv, serves both, so that nothing is compiled twice; a second run only looks for changes.

say() { printf '\n== %s\n' "$*"; }

fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

may_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

# A Debian package where we may install one, else a sentence that says how.
need_package() {
    if may_install; then
        say "installing $1"
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$1" >/dev/null; } ||
            fail "apt-get could not install $1: install it and run this again"
    else
        fail "$2 is missing. Install it (on Debian: sudo apt-get install $1) and run this again"
    fi
}

ensure_venv() {
    [ -x .venv/bin/python ] && .venv/bin/python -m pip --version >/dev/null 2>&1 && return
    local python=${PYTHON:-python3}
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "$python is no Python of 3.11 or newer: name one, PYTHON=/path/to/python3.12 scripts/${0##*/}"
    say "making .venv"
    "$python" -c 'import ensurepip' 2>/dev/null || need_package python3-venv "Python's venv module"
    rm -rf .venv
    "$python" -m venv .venv
}

ensure_compiler() {
    command -v c++ >/dev/null || need_package g++ "a C++ compiler"
}

# What compiles, in .venv; with a compiler cache where there is one.
ensure_build_tools() {
    ensure_venv
    ensure_compiler
    .venv/bin/python - <<'PY' || .venv/bin/python -m pip install -q 'scikit-build-core>=0.11' 'cmake>=3.24' 'ninja>=1.10'
import importlib.util, sys
sys.exit(not all(importlib.util.find_spec(name) for name in ("scikit_build_core", "cmake", "ninja")))
PY
    if command -v ccache >/dev/null; then
        export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
    fi
}

# What the package with these extras needs of others, a line each.
list_dependencies() {
    .venv/bin/python - "$@" <<'PY'
import re, sys, tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
needed, extras = project["dependencies"], sys.argv[1:]
while extras:
    for requirement in project["optional-dependencies"][extras.pop()]:
        own_extras = re.fullmatch(re.escape(project["name"]) + r"\[(.+)\]", requirement)
        if own_extras:
            extras += own_extras[1].split(",")
        else:
            needed.append(requirement)
print("\n".join(needed))
PY
}

# install_package EXTRAS [cmake defines…]: build into build/venv and install into .venv, editable. What it needs of others
# comes over the network while the compiler works, which it leaves the processor to: of 15,000 modules few are ever
# imported, and those are compiled then.
install_package() {
    local extras=$1 define needed dependencies_pid
    local pip=(.venv/bin/python -m pip install -q --disable-pip-version-check --no-compile)
    shift
    ensure_build_tools
    say "building (the first time takes some minutes: llama.cpp is compiled too)"
    mapfile -t needed < <(list_dependencies $extras)
    "${pip[@]}" "${needed[@]}" &
    dependencies_pid=$!
    local settings=(-C build-dir=build/venv)
    for define in "$@"; do settings+=(-C "cmake.define.$define"); done
    PATH="$PWD/.venv/bin:$PATH" "${pip[@]}" --no-build-isolation --no-deps "${settings[@]}" -e . ||
        fail "the build failed (above)"
    wait "$dependencies_pid" || fail "pip could not install what the package needs (above)"
}
