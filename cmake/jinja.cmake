# The Jinja engine of the pinned archive (common/jinja), for chat templates: a copy in the build folder with
# our patch, which bounds what an untrusted template may do. Its JSON conversion is left out, so it needs
# neither ggml nor nlohmann.
set(jinja_source "${QUIRE_LLAMA_DIR}/common")
set(jinja_copy "${CMAKE_BINARY_DIR}/jinja")
set(jinja_patch "${CMAKE_SOURCE_DIR}/cmake/patches/jinja-limits.patch")
set(jinja_files
  jinja/lexer.cpp jinja/parser.cpp jinja/runtime.cpp jinja/value.cpp jinja/string.cpp
  jinja/lexer.h jinja/parser.h jinja/runtime.h jinja/value.h jinja/string.h jinja/utils.h unicode.cpp unicode.h)

find_program(QUIRE_PATCH patch)
if(NOT QUIRE_PATCH)
  message(FATAL_ERROR "The program `patch` is needed for the Jinja engine: apt-get install patch.")
endif()

# Copied again only when the archive or the patch changed, so that a configure does not rebuild it.
file(SHA256 "${jinja_patch}" jinja_stamp)
foreach(file IN LISTS jinja_files)
  file(SHA256 "${jinja_source}/${file}" hash)
  string(APPEND jinja_stamp "${hash}")
endforeach()
string(SHA256 jinja_stamp "${jinja_stamp}")
set(jinja_stamp_file "${jinja_copy}/patched-${jinja_stamp}")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${jinja_patch}")
if(NOT EXISTS "${jinja_stamp_file}")
  file(REMOVE_RECURSE "${jinja_copy}")
  foreach(file IN LISTS jinja_files)
    get_filename_component(folder "${file}" DIRECTORY)
    file(COPY "${jinja_source}/${file}" DESTINATION "${jinja_copy}/${folder}" NO_SOURCE_PERMISSIONS)
  endforeach()
  execute_process(COMMAND "${QUIRE_PATCH}" -p1 --fuzz=0 --batch --input "${jinja_patch}"
    WORKING_DIRECTORY "${jinja_copy}" RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "cmake/patches/jinja-limits.patch does not fit the Jinja engine in ${jinja_source}: "
      "the pinned archive is another version than the patch was made for.\n${output}")
  endif()
  file(TOUCH "${jinja_stamp_file}")
endif()

add_library(quire_jinja STATIC
  "${jinja_copy}/jinja/lexer.cpp" "${jinja_copy}/jinja/parser.cpp" "${jinja_copy}/jinja/runtime.cpp"
  "${jinja_copy}/jinja/value.cpp" "${jinja_copy}/jinja/string.cpp" "${jinja_copy}/unicode.cpp")
target_include_directories(quire_jinja SYSTEM PUBLIC "${jinja_copy}")
# NDEBUG: its assertions doubt the template, not the engine; what they would stop is caught when it runs.
target_compile_definitions(quire_jinja PRIVATE NDEBUG)
target_compile_options(quire_jinja PRIVATE -w -fno-sanitize=undefined)
