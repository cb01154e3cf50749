# shoal_room(ROOM FOLDER ROOMS_BELOW LIBRARIES): the static library of a folder's *.c files.
# A folder's subfolder named after an instruction set is compiled with that set's flags; headers are
# included by their path below src/ ("base/status.h") or as "kernels/kern.h".
# The folder cuda holds a device's runtime in plain C, always compiled; shoal_cuda.cmake adds its
# *.cu files.
set(SHOAL_ISA_FLAGS_ref "")
set(SHOAL_ISA_FLAGS_cuda "")
set(SHOAL_ISA_FLAGS_avx2 "-mavx2;-mfma;-mf16c")
set(SHOAL_ISA_FLAGS_avx512 "-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512vnni;-mfma;-mf16c")
set(SHOAL_ISA_FLAGS_amx ${SHOAL_ISA_FLAGS_avx512}) # tiles are assembly

# For debuggers, gcc tracks each variable through these folders' unrolled bodies, which takes up to
# half of their compile time. Without that, debuggers still know lines and functions.
if(CMAKE_C_COMPILER_ID STREQUAL GNU)
  foreach(isa avx2 avx512 amx)
    list(APPEND SHOAL_ISA_FLAGS_${isa} -fno-var-tracking)
  endforeach()
endif()

# Sanitizers: with the undefined-behaviour checks these folders' unrolled bodies take minutes to
# compile; kernels/ref, which has the same arithmetic in plain loops, keeps them.
if(SHOAL_SANITIZE MATCHES undefined)
  foreach(isa avx2 avx512 amx)
    list(APPEND SHOAL_ISA_FLAGS_${isa} -fno-sanitize=undefined)
  endforeach()
endif()

# AddressSanitizer's inline checks take most of the time to compile those bodies. In a function of
# more than 100 accesses they become calls, which check the same.
if(SHOAL_SANITIZE MATCHES address AND CMAKE_C_COMPILER_ID STREQUAL GNU)
  foreach(isa avx2 avx512 amx)
    list(APPEND SHOAL_ISA_FLAGS_${isa} --param=asan-instrumentation-with-call-threshold=100)
  endforeach()
endif()

# Sanitized builds lack the copies of kernels/ref for CPUs with FMA (ref.h). Without FMA, fmaf is a
# call and the suites take ten times as long. Such a build runs where it is made, so its flags may
# follow this CPU.
if(SHOAL_SANITIZE)
  include(CheckCSourceRuns)
  check_c_source_runs("int main(void) { return !__builtin_cpu_supports(\"fma\"); }" SHOAL_CPU_HAS_FMA)
  if(SHOAL_CPU_HAS_FMA)
    set(SHOAL_ISA_FLAGS_ref "-mfma")
  endif()
endif()

# The kernels of AVX-512 and AMX take a third of the compile time of a sanitized or simulated build.
# A sanitized build leaves them out if this CPU cannot run them. A simulated build tests messages and
# leaves them out, unless -DCMAKE_BUILD_TYPE=Release makes it a build for measurements.
set(SHOAL_NO_AVX512 OFF)
if(SHOAL_SANITIZE)
  check_c_source_runs("int main(void) { return !(__builtin_cpu_supports(\"avx512f\") && __builtin_cpu_supports(\"avx512bw\") &&
    __builtin_cpu_supports(\"avx512vl\") && __builtin_cpu_supports(\"avx512dq\") && __builtin_cpu_supports(\"avx512vnni\")); }"
    SHOAL_CPU_HAS_AVX512)
  if(NOT SHOAL_CPU_HAS_AVX512)
    set(SHOAL_NO_AVX512 ON)
  endif()
elseif(CMAKE_BUILD_TYPE STREQUAL "Simulate")
  set(SHOAL_NO_AVX512 ON)
endif()

# shoal_target(OUT ROOM): the library's name, shoal_serve_lead for serve/lead
function(shoal_target out room)
  string(REPLACE "/" "_" name ${room})
  set(${out} shoal_${name} PARENT_SCOPE)
endfunction()

function(shoal_room room folder below libraries)
  shoal_target(target ${room})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.c)
  foreach(isa ref avx2 avx512 amx cuda)
    file(GLOB isa_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/${isa}/*.c)
    set_source_files_properties(${isa_sources} PROPERTIES COMPILE_OPTIONS "${SHOAL_ISA_FLAGS_${isa}}")
    list(APPEND sources ${isa_sources})
  endforeach()
  if(SHOAL_NO_AVX512 AND room STREQUAL kernels)
    file(GLOB peaks ${CMAKE_SOURCE_DIR}/kernels/avx512/peak_*.c ${CMAKE_SOURCE_DIR}/kernels/amx/peak_*.c)
    list(FILTER sources EXCLUDE REGEX "/kernels/(avx512|amx)/")
    list(APPEND sources ${peaks} ${CMAKE_SOURCE_DIR}/tests/no_avx512.c)
  endif()
  add_library(${target} STATIC ${sources})
  target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR})
  foreach(other ${below})
    shoal_target(other ${other})
    target_link_libraries(${target} PUBLIC ${other})
  endforeach()
  foreach(library ${libraries})
    target_link_libraries(${target} PUBLIC dep_${library})
  endforeach()
  target_link_libraries(${target} PUBLIC m)
  set_property(GLOBAL APPEND PROPERTY SHOAL_ROOMS ${target})
endfunction()

# shoal_rooms(FILE): all rooms of src/rooms.txt, lines of "room | rooms below | libraries"
function(shoal_rooms file)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(STRINGS ${file} lines REGEX "^[a-z]")
  foreach(line ${lines})
    string(REGEX MATCH "^([^ |]+) *\\| *([^|]*[^ |]) *\\| *(.*[^ ]) *$" whole "${line}")
    if(NOT whole)
      message(FATAL_ERROR "${file}: not \"room | rooms | libraries\": ${line}")
    endif()
    set(room ${CMAKE_MATCH_1})
    set(libraries ${CMAKE_MATCH_3})
    string(REPLACE " " ";" below "${CMAKE_MATCH_2}")
    string(REPLACE " " ";" libraries "${libraries}")
    list(REMOVE_ITEM below "-")
    list(REMOVE_ITEM libraries "-")
    set(folder src/${room})
    if(room STREQUAL kernels)
      set(folder kernels)
    endif()
    shoal_room(${room} ${folder} "${below}" "${libraries}")
  endforeach()
endfunction()
