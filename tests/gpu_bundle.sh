#!/usr/bin/env bash
# gpu_bundle.sh BUILD_FOLDER BUNDLE_FOLDER: packs a build with CUDA for a GPU machine without MPI,
# HDF5, hwloc and compilers: the programs, their shared libraries (except glibc's and the driver's),
# Open MPI's launcher and plugins, and env.sh, which sets their environment and refuses a glibc that
# is too old. There: tests/gpu.sh --prebuilt BUNDLE_FOLDER, with python3 and the source's tests/ and
# models/.
set -eu
build=${1:?a build folder} bundle=${2:?a folder to make}
mkdir -p "$bundle/bin" "$bundle/lib"
programs=()
for program in "$build/shoal" "$build"/tests/cuda/{open_device,peaks,attention_speed,kernels_gpu} "$build/tests/e2e/compare_logits"; do
    if [ -x "$program" ]; then programs+=("$program"); else echo "gpu_bundle.sh: no $program: left out" >&2; fi
done
[ ${#programs[@]} -gt 0 ] || exit 1
plugins=$(ompi_info --parsable --path pkglibdir 2>/dev/null | sed -n 's/^path:pkglibdir://p')
launcher=$(realpath "$(command -v mpirun)")
daemon=$(realpath "$(command -v orted)")
cp -L "${programs[@]}" "$bundle/bin/"
cp "$launcher" "$bundle/bin/mpirun"
cp "$daemon" "$bundle/bin/orted"
mkdir -p "$bundle/lib/openmpi" "$bundle/share"
find "$plugins" -name '*.so' -exec cp -L {} "$bundle/lib/openmpi/" \;
data=$(ompi_info --parsable --path pkgdatadir | sed -n 's/^path:pkgdatadir://p')
cp -rL "$data" "$bundle/share/openmpi"

# glibc comes from the GPU machine: env.sh checks its version
is_glibc='^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|anl|nss_.*|nsl|crypt|mvec))\.so'
ldd "$bundle"/bin/* "$bundle"/lib/openmpi/*.so 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
    while read -r library; do
        if ! basename "$library" | grep -qE "$is_glibc"; then cp -Ln "$library" "$bundle/lib/"; fi
    done
nccl=$(sed -n 's/^SHOAL_NCCL_LIBRARY:[A-Z]*=//p' "$build/CMakeCache.txt").2
[ ! -e "$nccl" ] || [ "${GPU_BUNDLE_NCCL:-yes}" = no ] || cp -L "$nccl" "$bundle/lib/"
needs=$(find "$bundle" -type f \( -name '*.so*' -o -path '*/bin/*' \) -exec objdump -T {} + 2>/dev/null |
    grep -oE 'GLIBC_2\.[0-9]+' | sort -uV | tail -n 1)
cat >"$bundle/env.sh" <<END
# Sourced by a shell that starts this bundle's programs.
here=\$(cd "\$(dirname "\${BASH_SOURCE[0]}")" && pwd)
has=\$(ldd --version | head -n 1 | grep -oE '[0-9]+\.[0-9]+\$')
if [ "\$(printf '%s\n' "${needs#GLIBC_}" "\$has" | sort -V | tail -n 1)" != "\$has" ]; then
    echo "this bundle needs glibc ${needs#GLIBC_}; this machine has \$has: build on an older system" >&2
    return 1
fi
export PATH=\$here/bin:\$PATH LD_LIBRARY_PATH=\$here/lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}
export OPAL_PREFIX=\$here OPAL_LIBDIR=\$here/lib OPAL_PKGLIBDIR=\$here/lib/openmpi
export OPAL_BINDIR=\$here/bin OPAL_DATADIR=\$here/share OPAL_PKGDATADIR=\$here/share/openmpi
export PMIX_MCA_gds=hash PMIX_MCA_psec=native
END
echo "$bundle: needs glibc ${needs#GLIBC_}, $(find "$bundle" -name '*.so*' | wc -l) libraries, $(du -sh "$bundle" | cut -f1)"
