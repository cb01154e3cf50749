# The files that `cmake --install` installs: the program, manual pages of its commands (printed by
# the program itself, so that they say what --help says), job scripts, the rooms as libraries with
# their headers, and shoal.pc.
include(GNUInstallDirs)

install(TARGETS shoal RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

# OFF where the built program cannot run on its own: in a cross build, and in the preset simulate.
option(SHOAL_MAN_PAGES "let the built program print its manual pages" ON)
set(pages "")
set(commands convert inspect quantize pack plan generate score embed rank serve bench diagnose status
  receipt merge)
if(NOT SHOAL_MAN_PAGES)
  set(commands "")
endif()
foreach(command ${commands})
  set(page ${CMAKE_BINARY_DIR}/man/shoal-${command}.1)
  add_custom_command(OUTPUT ${page}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/man
    COMMAND shoal ${command} --help-man > ${page}
    DEPENDS shoal VERBATIM)
  list(APPEND pages ${page})
endforeach()
add_custom_target(man ALL DEPENDS ${pages})
install(FILES ${pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)

# Job scripts: shoal-job is installed beside shoal, files to copy and edit in share/shoal/jobs.
file(GLOB job_scripts CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/jobs/*.sbatch)
install(PROGRAMS jobs/shoal-job jobs/gpu-rank DESTINATION ${CMAKE_INSTALL_BINDIR})
install(PROGRAMS jobs/hostfile.sh DESTINATION ${CMAKE_INSTALL_DATADIR}/shoal/jobs)
install(FILES integrations/lm_eval_shoal.py integrations/distill.py DESTINATION ${CMAKE_INSTALL_DATADIR}/shoal/integrations)
install(FILES ${job_scripts} jobs/README.md DESTINATION ${CMAKE_INSTALL_DATADIR}/shoal/jobs)

# The modulefile names the folder given to `cmake --install --prefix`, not the configured one.
foreach(name PROJECT_VERSION CMAKE_INSTALL_BINDIR CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_MANDIR
    CMAKE_INSTALL_DATADIR)
  install(CODE "set(${name} \"${${name}}\")")
endforeach()
install(CODE "configure_file(\"${CMAKE_CURRENT_SOURCE_DIR}/packaging/lmod/shoal.lua.in\"
  \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/shoal/modulefiles/shoal/${PROJECT_VERSION}.lua\"
  @ONLY)")

get_property(SHOAL_ROOMS GLOBAL PROPERTY SHOAL_ROOMS)
set(SHOAL_PC_LIBS "")
foreach(room ${SHOAL_ROOMS})
  install(TARGETS ${room} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/shoal)
  string(REGEX REPLACE "^shoal_" "-lshoal_" flag ${room})
  string(APPEND SHOAL_PC_LIBS "${flag} ")
endforeach()
install(DIRECTORY src/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/shoal FILES_MATCHING PATTERN "*/*.h")
install(DIRECTORY kernels DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/shoal FILES_MATCHING PATTERN "*.h")
configure_file(cmake/shoal.pc.in ${CMAKE_BINARY_DIR}/shoal.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/shoal.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

set(CPACK_PACKAGE_NAME shoal)
set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "language models on MPI clusters")
include(CPack)
