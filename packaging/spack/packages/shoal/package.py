# Spack's package of shoal. Use: spack repo add packaging/spack && spack install shoal
try:
    from spack_repo.builtin.build_systems.cmake import CMakePackage  # Spack 1.0 and later
except ImportError:
    pass  # before, spack.package brings it
from spack.package import *


class Shoal(CMakePackage):
    """Runs dense and Mixture-of-Experts language models under any MPI launcher, with the same bytes
    in every layout of ranks."""

    version("main", branch="main")

    variant("tests", default=False, description="Build the unit, kernel and MPI tests")

    depends_on("c", type="build")
    depends_on("cmake@3.20:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("mpi@3:")
    depends_on("hdf5@1.10:+mpi")
    depends_on("hwloc@2:")
    depends_on("jansson")
    depends_on("pcre2")
    depends_on("utf8proc@2:")
    depends_on("xxhash@0.8:")
    depends_on("zlib-api")
    depends_on("zstd")
    depends_on("xz")
    depends_on("libmicrohttpd")
    depends_on("random123@1.14:", type="build")
    depends_on("cunit@2.1:", when="+tests", type="build")

    generator("ninja")
    conflicts("%gcc@:10", msg="shoal needs C11 and the AVX-512 intrinsics of GCC 11")

    def cmake_args(self):
        return [
            self.define_from_variant("SHOAL_TESTS", "tests"),
            self.define("CMAKE_C_COMPILER", self.spec["mpi"].mpicc),
        ]

    def setup_run_environment(self, env):
        env.set("SHOAL_JOBS", self.prefix.share.shoal.jobs)
