# The pinned archives of scripts/deps/pypi.lock, built as targets of ours with their sources by name.
# scripts/deps/fetch.sh fills QUIRE_DEPS_DIR; a missing folder is one clear sentence.
set(QUIRE_LLAMA_DIR "${QUIRE_DEPS_DIR}/llama.cpp")
set(QUIRE_XGRAMMAR_DIR "${QUIRE_DEPS_DIR}/xgrammar")
if(NOT EXISTS "${QUIRE_LLAMA_DIR}/ggml/include/ggml.h" OR NOT EXISTS "${QUIRE_XGRAMMAR_DIR}/include/xgrammar/xgrammar.h")
  message(FATAL_ERROR "The pinned sources are not in ${QUIRE_DEPS_DIR}: run scripts/deps/fetch.sh first.")
endif()
include(cmake/patched.cmake)
include(cmake/ggml.cmake)
include(cmake/jinja.cmake)
add_subdirectory(cmake/xgrammar)
# What libquire.a must carry besides our own modules (cmake/install.cmake).
foreach(target quire_ggml_base quire_ggml_rows_sse42 quire_ggml_rows_avx2 quire_ggml_rows_avx512 quire_jinja
        quire_xgrammar)
  if(TARGET ${target})
    set_property(GLOBAL APPEND PROPERTY QUIRE_THIRD_PARTY ${target})
  endif()
endforeach()
