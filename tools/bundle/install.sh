#!/bin/sh
# Installs Rankwise from this folder, without network and without root, into rankwise/.venv beside this script.
# PYTHON=/path/to/python sh install.sh names the Python.
set -eu

python_wanted='@PYTHON@'
machine_wanted='@MACHINE@'
glibc_wanted='@GLIBC@'
extras='@EXTRAS@'
sums_wanted='@SUMS@'

fail() {
    printf 'install.sh: %s\n' "$@" >&2
    exit 1
}

quoted() { # one word of a shell command
    printf "'%s'" "$(printf '%s' "$1" | sed "s/'/'\\\\''/g")"
}

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
venv=$here/rankwise/.venv
export LC_ALL=C PIP_CONFIG_FILE=/dev/null
unset PYTHONPATH # modules of a cluster set it; pip would take the packages there for installed ones

# The machine.
machine=$(uname -m)
[ "$machine" = "$machine_wanted" ] || fail "wrong architecture: this machine is $machine, the bundle is for $machine_wanted" \
    "make one for $machine where there is internet: make bundle PYTHON_VERSION=$python_wanted MACHINE=$machine"

# The Python.
if [ -n "${PYTHON:-}" ]; then
    name=$PYTHON
elif command -v "python$python_wanted" >/dev/null 2>&1 && "python$python_wanted" -c '' >/dev/null 2>&1; then
    name=python$python_wanted
else
    name=python3
fi
name_it="load a module that has Python $python_wanted, or name one: PYTHON=/path/to/python$python_wanted sh install.sh"
python=$(command -v -- "$name") || fail "there is no $name here; the bundle is for CPython $python_wanted" "$name_it"
version=$("$python" -c 'import platform, sys, sysconfig
free_threaded = " free-threaded" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
print("%s %d.%d%s" % ((platform.python_implementation(),) + sys.version_info[:2] + (free_threaded,)))') ||
    fail "$python does not run; the bundle is for CPython $python_wanted" "$name_it"
[ "$version" = "CPython $python_wanted" ] || fail "wrong Python: $python is $version, the bundle is for CPython $python_wanted" \
    "$name_it" "or make a bundle for another Python, 3.11 or newer, where there is internet: make bundle PYTHON_VERSION=…"
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$python has no venv module; on Debian or Ubuntu: apt-get install python$python_wanted-venv" "or $name_it"
"$python" -c 'import os, sys
name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
sys.exit(name != "glibc" or tuple(map(int, version.split("."))) < tuple(map(int, sys.argv[1].split("."))))' "$glibc_wanted" ||
    fail "wrong C library: this machine has $(getconf GNU_LIBC_VERSION 2>/dev/null || echo 'no glibc')," \
        "the wheels need glibc $glibc_wanted or newer: install in a container of a newer system"

# The files.
command -v sha256sum >/dev/null || fail "there is no sha256sum here (GNU coreutils): the files cannot be checked"
endless=$(cd -- "$here" && find . -path ./rankwise/.venv -prune -o ! -type f ! -type d ! -type l -print)
[ -z "$endless" ] || fail "pipes or devices in $here, whose reading may never end:" "$endless" "remove them"
sums=$(cd -- "$here" && echo "$sums_wanted  SHA256SUMS" | sha256sum -c - 2>&1 && sha256sum -c SHA256SUMS 2>&1) ||
    fail "damaged, changed or missing files in $here:" "$(printf '%s\n' "$sums" | grep -v ': OK$')" \
        "unpack the archive again; if that does not help, copy it here again"
strange=$(cd -- "$here" && find wheels ! -type d | while IFS= read -r file; do
    { [ ! -L "$file" ] && cut -c67- SHA256SUMS | grep -qxF -- "$file"; } || printf '%s\n' "$file"
done)
[ -z "$strange" ] || fail "wheels in $here that the bundle did not bring, and pip could install:" "$strange" \
    "remove them, or unpack the archive again in an empty folder"
[ ! -e "$venv" ] || fail "$venv exists: Rankwise is installed; to reinstall it: rm -r $(quoted "$venv")"

echo "installing into $venv, with $version ($python)"
trap 'rm -rf -- "$venv"' EXIT
trap 'exit 1' HUP INT TERM
"$python" -m venv "$venv"
cd -- "$here/rankwise"
"$venv/bin/python" -m pip --isolated --disable-pip-version-check --quiet install --no-index --no-cache-dir \
    --find-links "$here/wheels" --editable ".$extras"
"$venv/bin/python" -m pip --isolated --disable-pip-version-check check
trap - EXIT
cat <<END
installed. Next:
  cd $(quoted "$here/rankwise") && . .venv/bin/activate
  rankwise sweep --nodes 1,2,4 --dry-run
END
