# `cmake --install`: the program, the public headers, one static library of all modules and what it needs, a
# CMake package (find_package(quire); quire::quire) and a pkg-config file.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(modules GLOBAL PROPERTY QUIRE_MODULES)
list(FILTER modules EXCLUDE REGEX "quire_(cli|server_.*|conformance|attention_bench|model_testing)$")
set(archives ${modules})
get_property(third_party GLOBAL PROPERTY QUIRE_THIRD_PARTY)
list(APPEND archives ${third_party})
set(inputs "")
foreach(archive IN LISTS archives)
  list(APPEND inputs $<TARGET_FILE:${archive}>)
endforeach()

# One archive for users: ar merges the modules' archives, thin enough to keep the build's own targets apart.
set(merged ${CMAKE_BINARY_DIR}/libquire.a)
add_custom_command(
  OUTPUT ${merged}
  COMMAND ${CMAKE_COMMAND} -DOUTPUT=${merged} "-DINPUTS=${inputs}" -DAR=${CMAKE_AR}
          -P ${CMAKE_SOURCE_DIR}/cmake/merge_archives.cmake
  DEPENDS ${archives} ${CMAKE_SOURCE_DIR}/cmake/merge_archives.cmake
  VERBATIM)
add_custom_target(quire_library DEPENDS ${merged})

install(FILES ${merged} DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS quire RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY include/quire DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})

configure_package_config_file(cmake/quire-config.cmake.in ${CMAKE_BINARY_DIR}/quire-config.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/quire
                              PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/quire-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/quire-config.cmake ${CMAKE_BINARY_DIR}/quire-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/quire)
# From the folder of quire.pc up to the prefix, so that an installed tree can be moved.
file(RELATIVE_PATH QUIRE_PC_TO_PREFIX "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" QUIRE_PC_TO_PREFIX "${QUIRE_PC_TO_PREFIX}")
configure_file(cmake/quire.pc.in ${CMAKE_BINARY_DIR}/quire.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/quire.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
