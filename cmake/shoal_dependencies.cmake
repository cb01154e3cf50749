# Finds what shoal needs and gives each library one imported name, dep_<name>.
find_package(PkgConfig REQUIRED)
find_package(MPI REQUIRED COMPONENTS C)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

function(shoal_pkg name package)
  pkg_check_modules(${name}_pc REQUIRED IMPORTED_TARGET GLOBAL ${package})
  add_library(dep_${name} INTERFACE)
  target_link_libraries(dep_${name} INTERFACE PkgConfig::${name}_pc)
endfunction()

shoal_pkg(jansson jansson)
shoal_pkg(hwloc hwloc)
shoal_pkg(pcre2 libpcre2-8)
shoal_pkg(utf8proc libutf8proc)
shoal_pkg(xxhash libxxhash)
shoal_pkg(zlib zlib)
shoal_pkg(zstd libzstd)
shoal_pkg(lzma liblzma)
shoal_pkg(microhttpd libmicrohttpd)
# True if the library has its checksums for several instruction sets and chooses one of them.
include(CheckCSourceCompiles)
set(CMAKE_REQUIRED_LIBRARIES PkgConfig::xxhash_pc)
check_c_source_compiles("
  #include <xxhash.h>
  #include <xxh_x86dispatch.h>
  int main(void) { return XXH3_128bits_update(0, 0, 0) == XXH_OK; }" SHOAL_XXHASH_CHOOSES)
unset(CMAKE_REQUIRED_LIBRARIES)
if(SHOAL_XXHASH_CHOOSES)
  target_compile_definitions(dep_xxhash INTERFACE SHOAL_XXHASH_CHOOSES)
endif()
shoal_pkg(hdf5 hdf5)

add_library(dep_mpi INTERFACE)
target_link_libraries(dep_mpi INTERFACE MPI::MPI_C)
add_library(dep_threads INTERFACE)
target_link_libraries(dep_threads INTERFACE Threads::Threads)
add_library(dep_random123 INTERFACE)
find_path(RANDOM123_INCLUDE Random123/philox.h REQUIRED)
target_include_directories(dep_random123 INTERFACE ${RANDOM123_INCLUDE})
