# shoal_room(NAME FOLDER ROOMS_BELOW EXTERNAL...): the static library shoal_NAME of a folder's *.c files.
# A folder's subfolder named after an instruction set is compiled with that set's flags; headers are
# included by their path below src/ ("base/status.h") or as "kernels/kern.h".
# The folder cuda holds a device's runtime in plain C, always compiled; its *.cu are shoal_cuda.cmake's.
set(SHOAL_ISA_FLAGS_ref "")
set(SHOAL_ISA_FLAGS_cuda "")
set(SHOAL_ISA_FLAGS_avx2 "-mavx2;-mfma;-mf16c")
set(SHOAL_ISA_FLAGS_avx512 "-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512vnni;-mfma;-mf16c")
set(SHOAL_ISA_FLAGS_amx ${SHOAL_ISA_FLAGS_avx512}) # tiles are assembly

# Sanitizers: the undefined-behaviour checks multiply the time to compile these folders' unrolled
# bodies to minutes; kernels/ref, which has the same arithmetic in plain loops, keeps them.
if(SHOAL_SANITIZE MATCHES undefined)
  foreach(isa avx2 avx512 amx)
    list(APPEND SHOAL_ISA_FLAGS_${isa} -fno-sanitize=undefined)
  endforeach()
endif()

# Nor do they have the copies of kernels/ref for CPUs with FMA (ref.h), without which fmaf is a call and
# the suites take ten times as long. Such a build runs where it is made, so that CPU is asked.
if(SHOAL_SANITIZE)
  include(CheckCSourceRuns)
  check_c_source_runs("int main(void) { return !__builtin_cpu_supports(\"fma\"); }" SHOAL_CPU_HAS_FMA)
  if(SHOAL_CPU_HAS_FMA)
    set(SHOAL_ISA_FLAGS_ref "-mfma")
  endif()
endif()

function(shoal_room name folder below)
  set_property(GLOBAL APPEND PROPERTY SHOAL_ROOMS ${name})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.c)
  foreach(isa ref avx2 avx512 amx cuda)
    file(GLOB isa_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/${isa}/*.c)
    set_source_files_properties(${isa_sources} PROPERTIES COMPILE_OPTIONS "${SHOAL_ISA_FLAGS_${isa}}")
    list(APPEND sources ${isa_sources})
  endforeach()
  if(sources)
    add_library(shoal_${name} STATIC ${sources})
    set(visibility PUBLIC)
  else()
    add_library(shoal_${name} INTERFACE)
    set(visibility INTERFACE)
  endif()
  target_include_directories(shoal_${name} ${visibility}
    ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR})
  foreach(room ${below})
    target_link_libraries(shoal_${name} ${visibility} shoal_${room})
  endforeach()
  foreach(dep ${ARGN})
    target_link_libraries(shoal_${name} ${visibility} dep_${dep})
  endforeach()
  target_link_libraries(shoal_${name} ${visibility} m)
endfunction()
