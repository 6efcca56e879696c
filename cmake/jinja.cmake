# The Jinja engine of the pinned archive (common/jinja), for chat templates: a copy in the build folder with
# our patch, which bounds what an untrusted template may do. Its JSON conversion is left out, so it needs
# neither ggml nor nlohmann.
set(jinja_source "${QUIRE_LLAMA_DIR}/common")
set(jinja_copy "${CMAKE_BINARY_DIR}/jinja")
set(jinja_files
  jinja/lexer.cpp jinja/parser.cpp jinja/runtime.cpp jinja/value.cpp jinja/string.cpp
  jinja/lexer.h jinja/parser.h jinja/runtime.h jinja/value.h jinja/string.h jinja/utils.h unicode.cpp unicode.h)

quire_patched("${jinja_copy}" "${jinja_source}" "${CMAKE_SOURCE_DIR}/cmake/patches/jinja-limits.patch" ${jinja_files})

add_library(quire_jinja STATIC
  "${jinja_copy}/jinja/lexer.cpp" "${jinja_copy}/jinja/parser.cpp" "${jinja_copy}/jinja/runtime.cpp"
  "${jinja_copy}/jinja/value.cpp" "${jinja_copy}/jinja/string.cpp" "${jinja_copy}/unicode.cpp")
target_include_directories(quire_jinja SYSTEM PUBLIC "${jinja_copy}")
# NDEBUG: its assertions doubt the template, not the engine; what they would stop is caught when it runs.
target_compile_definitions(quire_jinja PRIVATE NDEBUG)
target_compile_options(quire_jinja PRIVATE -w -fno-sanitize=undefined)
