# ggml from the pinned archive, its sources by name: the row kernels and small matrix products once per
# instruction set (not the ggml-cpu backend: no threads, no graph of its own), and the quantisers and
# dequantisers once. The names of the per-level copies get a prefix by a generated header, so all of them
# live in one binary and ops/cpu chooses by platform/cpu/isa.h.
#
# The two C++ files compiled per level must define no weak (inline) function: the linker could pick the
# AVX-512 copy for the whole program. ops/cpu's structure test looks at the archives' symbols.
set(ggml_dir "${QUIRE_LLAMA_DIR}/ggml")
set(ggml_cpu "${ggml_dir}/src/ggml-cpu")

function(quire_ggml_target name)
  target_include_directories(${name} SYSTEM PUBLIC "${ggml_dir}/include" "${ggml_dir}/src")
  target_include_directories(${name} PRIVATE "${ggml_cpu}")
  # NDEBUG: ggml's own assertions only; ours are QUIRE_CHECK. C++17 is what ggml is written in.
  target_compile_definitions(${name} PRIVATE NDEBUG _GNU_SOURCE)
  target_compile_options(${name} PRIVATE -w -fno-sanitize=undefined)
  set_target_properties(${name} PROPERTIES CXX_STANDARD 17 C_STANDARD 11 C_EXTENSIONS ON)
endfunction()

# ggml.c itself is not needed: the five functions that these files take from it are in ops/cpu/ggml_hooks.cc.
add_library(quire_ggml_base STATIC "${ggml_dir}/src/ggml-quants.c")
quire_ggml_target(quire_ggml_base)
target_link_libraries(quire_ggml_base PUBLIC m)

# The functions that quants.h, vec.h and sgemm.h declare, and vec.cpp's two tables.
set(ggml_renamed llamafile_sgemm ggml_table_gelu_f16 ggml_table_gelu_quick_f16)
foreach(header quants.h vec.h)
  file(STRINGS "${ggml_cpu}/${header}" lines REGEX "^(void|ggml_float) +[a-zA-Z0-9_]+ *\\(")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^(void|ggml_float) +([a-zA-Z0-9_]+).*" "\\2" function "${line}")
    list(APPEND ggml_renamed ${function})
  endforeach()
endforeach()
list(REMOVE_DUPLICATES ggml_renamed)

function(quire_ggml_rows level)
  set(renames "")
  foreach(function IN LISTS ggml_renamed)
    string(APPEND renames "#define ${function} quire_${level}_${function}\n")
  endforeach()
  set(header "${CMAKE_BINARY_DIR}/generated/ggml_rows_${level}.h")
  file(CONFIGURE OUTPUT "${header}" CONTENT "${renames}" @ONLY)
  add_library(quire_ggml_rows_${level} STATIC
    "${ggml_cpu}/quants.c" "${ggml_cpu}/arch/x86/quants.c" "${ggml_cpu}/vec.cpp" "${ggml_cpu}/llamafile/sgemm.cpp")
  quire_ggml_target(quire_ggml_rows_${level})
  target_compile_options(quire_ggml_rows_${level} PRIVATE -include "${header}" ${ARGN})
  target_link_libraries(quire_ggml_rows_${level} PUBLIC quire_ggml_base)
endfunction()

# -O3 in every build: GCC fuses multiplications and additions from -O2 on, and what is fused is part of a result's
# bits. A sanitizer build that fused less would check other numbers than those that users get.
set(QUIRE_FLAGS_sse42 -O3 -msse4.2 -mpopcnt)
set(QUIRE_FLAGS_avx2 -O3 -mavx2 -mfma -mf16c -mbmi2)
set(QUIRE_FLAGS_avx512 ${QUIRE_FLAGS_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl)
quire_ggml_rows(sse42 ${QUIRE_FLAGS_sse42})
quire_ggml_rows(avx2 ${QUIRE_FLAGS_avx2})
# With VNNI, as every AVX-512 server since 2019 has it; one without uses the avx2 copy.
quire_ggml_rows(avx512 ${QUIRE_FLAGS_avx512} -mavx512vnni)
