#!/usr/bin/env bash
# Makes .venv/bin/hangtrace work on a machine that has nothing but python3, git and make.
#
#   tools/setup.sh         what running needs: the extension, and all extras but Ray
#   tools/setup.sh --test  also what the tests need, PyTorch included
#
# Looks for each thing itself, not for its package: where everything is there already, no package manager is
# needed. Asks no questions. Variables: PYTHON (interpreter of the venv), VENV (its folder), TORCH_PIP_ARGS
# (options for the installation of PyTorch), REQUIRE_TORCH=1 (fail if it cannot be had), CMAKE_ARGS.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${VENV:-.venv}
for_tests=no
[ "${1:-}" = --test ] && for_tests=yes

say() { printf '%s\n' "$*" >&2; }
die() {
    say "setup: $*"
    exit 1
}

recent_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }

choose_python() {
    local name
    for name in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10}; do
        if command -v "$name" >/dev/null && recent_enough "$name"; then
            command -v "$name"
            return
        fi
    done
    die "needs Python 3.10 or newer; set PYTHON to one (looked at: ${PYTHON:-python3 and python3.10 to python3.13})"
}

can_make_venv() { "$python" -c 'import venv, ensurepip' 2>/dev/null; }
has_python_headers() {
    "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'
}
has_header() { printf '#include <%s>\n' "$1" | g++ -x c++ -fsyntax-only - 2>/dev/null; }
has_bcc() { compgen -G '/usr/lib/python3*/dist-packages/bcc/__init__.py' >/dev/null ||
    compgen -G '/usr/lib*/python3*/site-packages/bcc/__init__.py' >/dev/null; }
has_browser() {
    local name
    command -v chromedriver >/dev/null || return
    for name in chromium chromium-browser google-chrome google-chrome-stable chrome; do
        command -v "$name" >/dev/null && return
    done
    return 1
}

required=()
optional=()
look_for_system_packages() {
    required=()
    optional=()
    can_make_venv || required+=(python3-venv)
    has_python_headers || required+=(python3-dev)
    command -v g++ >/dev/null || required+=(g++)
    has_bcc || optional+=(python3-bpfcc)
    has_header lzma.h || optional+=(liblzma-dev) # symbols of builds that carry them compressed
    has_header zlib.h || optional+=(zlib1g-dev)  # compressed sections
    if [ $for_tests = yes ]; then
        has_header doctest/doctest.h || required+=(doctest-dev)
        has_browser || optional+=(chromium chromium-driver)
        command -v musl-gcc >/dev/null || optional+=(musl-tools) # programs linked with musl
        command -v tmux >/dev/null || optional+=(tmux) # a terminal for the live view
        command -v mpicc.openmpi >/dev/null || optional+=(openmpi-bin libopenmpi-dev) # ranks of MPI
    fi
}

apt_get() {
    local as_root=()
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || die "not root and no sudo; as root: apt-get install ${required[*]} ${optional[*]}"
        as_root=(sudo)
        [ -t 0 ] || as_root+=(-n)
    fi
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o Dpkg::Use-Pty=0 "$@" </dev/null >&2
}

install_system_packages() {
    look_for_system_packages
    [ $((${#required[@]} + ${#optional[@]})) = 0 ] && return
    say "setup: missing on this system: ${required[*]} ${optional[*]}"
    if ! command -v apt-get >/dev/null; then
        [ ${#required[@]} = 0 ] || die "no apt-get here; install what these Debian packages hold: ${required[*]}"
        say "setup: WARNING: no apt-get here; going on without ${optional[*]}"
        return
    fi
    apt_get update || say "setup: WARNING: apt-get update failed; going on with the lists that are there"
    [ ${#required[@]} = 0 ] || apt_get install --no-install-recommends "${required[@]}"
    local package
    for package in "${optional[@]}"; do
        apt_get install --no-install-recommends "$package" ||
            say "setup: WARNING: no $package here; what needs it is skipped"
    done
    look_for_system_packages
    [ ${#required[@]} = 0 ] || die "installed, and still not usable by $python: ${required[*]}"
}

make_venv() {
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 && recent_enough "$venv/bin/python" && return
    "$python" -m venv --clear "$venv"
}

pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

build() {
    local extras=all cmake_args=${CMAKE_ARGS:-}
    if [ $for_tests = yes ]; then
        extras=all,test
        cmake_args+=" -DHT_BUILD_TESTS=ON"
    fi
    # Without isolation the build folder is kept and only what changed is compiled again.
    pip install -q "scikit-build-core>=0.10" "pybind11>=2.13" "cmake>=3.24" ninja
    PATH="$PWD/$venv/bin:$PATH" CMAKE_ARGS=$cmake_args CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)} \
        pip install -q --no-build-isolation -e ".[$extras]"
}

install_torch() {
    "$venv/bin/python" -c 'from importlib.metadata import version
assert version("torch").startswith("2.13.0")' 2>/dev/null && return
    # shellcheck disable=SC2086 # several options
    pip install ${TORCH_PIP_ARGS:-} "torch==2.13.0" >&2 && return
    [ "${REQUIRE_TORCH:-0}" = 0 ] || die "PyTorch 2.13.0 cannot be installed"
    say "setup: WARNING: no PyTorch 2.13.0 for this Python here (TORCH_PIP_ARGS chooses where from); its tests are skipped"
}

python=$(choose_python)
install_system_packages
make_venv
build
if [ $for_tests = yes ]; then
    install_torch
fi
