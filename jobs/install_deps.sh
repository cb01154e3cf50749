#!/usr/bin/env bash
# install_deps.sh [--tests]: installs the packages that shoal's build (and its tests) need, if this machine has
# apt and permits it. Otherwise it prints what to load, and exits with 1 if the build would not find everything.
set -eu

packages="gcc g++ cmake ninja-build pkg-config openmpi-bin libopenmpi-dev libhdf5-openmpi-dev
hdf5-tools libhwloc-dev hwloc libcunit1-dev libjansson-dev libpcre2-dev libutf8proc-dev
libxxhash-dev librandom123-dev zlib1g-dev libzstd-dev liblzma-dev libmicrohttpd-dev python3"
[ "${1-}" = --tests ] && packages="$packages python3-pip iproute2 util-linux slurm-wlm munge libsimgrid-dev"

say_what_to_load()
{
    cat >&2 <<END
This script cannot install packages here ($1). Load these as modules, or ask your administrator:
  a C11 compiler (GCC >= 11), CMake >= 3.20, Ninja, pkg-config
  Open MPI >= 4 (or another MPI 3 library)      HDF5 >= 1.10, built with that MPI (hdf5.pc)
  hwloc >= 2        jansson >= 2.13             PCRE2 (8 bit)       utf8proc >= 2
  xxHash >= 0.8     Random123 >= 1.14           zlib, zstd, xz (liblzma)
  libmicrohttpd >= 0.9.71
  for the tests: CUnit >= 2.1, Python >= 3.10 (standard library; pip for the real model's test),
  iproute2 (ip) and util-linux (unshare) for two hosts on one machine, Slurm and MUNGE for job scripts,
  SimGrid (smpicc, smpirun) for simulated clusters
Debian's names: $(echo $packages)
END
}

# True when the tools and libraries are there, however they came.
build_would_find_all()
{
    local tool library
    for tool in gcc cmake ninja pkg-config mpicc mpirun python3; do
        command -v $tool >/dev/null || { echo "missing: $tool" >&2; return 1; }
    done
    for library in jansson hwloc libpcre2-8 libutf8proc libxxhash zlib libzstd liblzma libmicrohttpd hdf5 cunit; do
        pkg-config --exists $library || { echo "missing: $library (pkg-config)" >&2; return 1; }
    done
    echo '#include <Random123/philox.h>' | gcc -E -x c - >/dev/null 2>&1 ||
        { echo "missing: Random123/philox.h" >&2; return 1; }
}

missing_packages()
{
    local package
    for package in $packages; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
            echo "$package"
    done
}

if ! command -v apt-get >/dev/null; then
    build_would_find_all && exit 0
    say_what_to_load "there is no apt-get"
    exit 1
fi
missing=$(missing_packages)
[ -z "$missing" ] && exit 0
as_root=""
if [ "$(id -u)" != 0 ]; then
    if ! sudo -n true 2>/dev/null; then
        build_would_find_all && exit 0
        say_what_to_load "not root, and sudo asks for a password"
        exit 1
    fi
    as_root=sudo
fi
echo "installing:" $missing
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -qq
$as_root apt-get install -y -qq --no-install-recommends $missing >/dev/null
