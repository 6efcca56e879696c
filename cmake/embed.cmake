# quire_embed(target FILES a b ...): the files' bytes as a table in the library `target`. The table is
# declared by server/page/files.h; names are those of the files without their folders.
# Run as a script (-DFILES=... -DOUTPUT=...) it writes the source.
if(CMAKE_SCRIPT_MODE_FILE)
  string(REPLACE "|" ";" files "${FILES}")
  set(text "// Made by cmake/embed.cmake.\n#include \"server/page/files.h\"\n\nnamespace quire::server {\nnamespace {\n\n")
  set(table "")
  set(index 0)
  foreach(file IN LISTS files)
    file(READ ${file} hex HEX)
    file(SHA256 ${file} hash)
    string(SUBSTRING ${hash} 0 16 hash)
    get_filename_component(name ${file} NAME)
    string(LENGTH "${hex}" digits)
    math(EXPR bytes "${digits} / 2")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," body "${hex}")
    # A line of its own for every 16 bytes, so that the compiler and people can read it.
    string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)" "\\1\n" body "${body}")
    string(APPEND text "constexpr unsigned char kBytes${index}[] = {\n${body}};\n\n")
    string(APPEND table "    {\"${name}\", \"\\\"${hash}\\\"\", {reinterpret_cast<const char*>(kBytes${index}), ${bytes}}},\n")
    math(EXPR index "${index} + 1")
  endforeach()
  string(APPEND text "const PageFile kFiles[] = {\n${table}};\n\n}  // namespace\n\nstd::span<const PageFile> page_files() { return kFiles; }\n\n}  // namespace quire::server\n")
  file(WRITE ${OUTPUT} "${text}")
  return()
endif()

function(quire_embed target)
  cmake_parse_arguments(ARG "" "" "FILES" ${ARGN})
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${target}_files.cc)
  list(JOIN ARG_FILES "|" joined)
  add_custom_command(OUTPUT ${output}
                     COMMAND ${CMAKE_COMMAND} "-DFILES=${joined}" -DOUTPUT=${output} -P ${CMAKE_SOURCE_DIR}/cmake/embed.cmake
                     DEPENDS ${ARG_FILES} ${CMAKE_SOURCE_DIR}/cmake/embed.cmake VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()
