# quire_patched(COPY SOURCE PATCH FILES...): copies files of the folder SOURCE of a pinned archive, by their paths in it,
# into the folder COPY and applies PATCH there. Again only when one of them or the patch changed, so that a configure
# does not rebuild them.
find_program(QUIRE_PATCH patch)
if(NOT QUIRE_PATCH)
  message(FATAL_ERROR "The program `patch` is needed for the pinned sources: apt-get install patch.")
endif()

function(quire_patched copy source patch)
  file(SHA256 "${patch}" stamp)
  foreach(file IN LISTS ARGN)
    file(SHA256 "${source}/${file}" hash)
    string(APPEND stamp "${hash}")
  endforeach()
  string(SHA256 stamp "${stamp}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${patch}")
  if(EXISTS "${copy}/patched-${stamp}")
    return()
  endif()
  file(REMOVE_RECURSE "${copy}")
  foreach(file IN LISTS ARGN)
    get_filename_component(folder "${file}" DIRECTORY)
    file(COPY "${source}/${file}" DESTINATION "${copy}/${folder}" NO_SOURCE_PERMISSIONS)
  endforeach()
  execute_process(COMMAND "${QUIRE_PATCH}" -p1 --fuzz=0 --batch --input "${patch}"
    WORKING_DIRECTORY "${copy}" RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${patch} does not fit ${source}: the pinned archive is another version than the patch was "
      "made for.\n${output}")
  endif()
  file(TOUCH "${copy}/patched-${stamp}")
endfunction()
