# quire_module(name DEPS a b ...): the library quire_<name> from every *.cc of the folder (tests apart)
# and, when tests are on, the program quire_<name>_test from its *_test.cc files.
# Every test has the label `host`; LABELS adds more (`threads`: also run under the thread sanitizer, which is slow:
# TSAN is the GoogleTest filter of what meets threads). The target <label>_tests builds the tests of a label.
# Folders below (attention/backends/x, ops/cpu, ...) are modules of their own.
#
# CUDA: a folder of a CUDA build: its *.cu are compiled too, and it may include the vendor's headers.
# *_device_test.cc and *_device_test.cu need a GPU: in a CUDA build they become quire_<name>_device_test with the
# label `device`, which says why it skips where there is no GPU. DEVICE_DEPS: what these tests need besides.
function(quire_test program)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS;LABELS" ${ARGN})
  add_executable(${program} ${ARG_SOURCES})
  target_link_libraries(${program} PRIVATE ${ARG_LIBS})
  target_compile_definitions(${program} PRIVATE QUIRE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  foreach(label IN LISTS ARG_LABELS)
    if(NOT TARGET ${label}_tests)
      add_custom_target(${label}_tests)
    endif()
    add_dependencies(${label}_tests ${program})
  endforeach()
endfunction()

# The CTest entry of a test program that has device_main.cc's main(): exit code 77 where no device is, after it
# said so.
function(quire_device_test_entry name program)
  add_test(NAME ${name} COMMAND ${program})
  set_tests_properties(${name} PROPERTIES LABELS device SKIP_RETURN_CODE 77 RUN_SERIAL ON)
endfunction()

function(quire_module name)
  cmake_parse_arguments(ARG "CUDA" "TSAN" "DEPS;TEST_DEPS;DEVICE_DEPS;LIBS;LABELS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS "*.cc")
  file(GLOB tests CONFIGURE_DEPENDS "*_test.cc")
  file(GLOB device_tests CONFIGURE_DEPENDS "*_device_test.cc" "*_device_test.cu")
  if(ARG_CUDA)
    file(GLOB kernels CONFIGURE_DEPENDS "*.cu")
    list(APPEND sources ${kernels})
    list(APPEND ARG_LIBS quire_cuda_runtime)
  endif()
  list(REMOVE_ITEM sources ${tests} ${device_tests})
  list(REMOVE_ITEM tests ${device_tests})
  add_library(quire_${name} STATIC ${sources})
  set_target_properties(quire_${name} PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(quire_${name} PUBLIC quire_options fmt::fmt Threads::Threads)
  foreach(dep IN LISTS ARG_DEPS)
    target_link_libraries(quire_${name} PUBLIC quire_${dep})
  endforeach()
  target_link_libraries(quire_${name} PRIVATE ${ARG_LIBS})
  set_property(GLOBAL APPEND PROPERTY QUIRE_MODULES quire_${name})
  # Most of a file's compile time is its headers (JSON, formatting): six files at a time read them a sixth as often
  # where only the program is built. Builds with tests stay file by file: a change compiles one, and a name that needs
  # another file's is found. Files with options of their own (instruction sets) stay alone.
  if(NOT QUIRE_TESTS)
    set_target_properties(quire_${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
    return()
  endif()
  set(test_libs quire_${name})
  if(ARG_CUDA)
    list(APPEND test_libs quire_cuda_runtime)
  endif()
  foreach(dep IN LISTS ARG_TEST_DEPS)
    list(APPEND test_libs quire_${dep})
  endforeach()
  if(tests)
    quire_test(quire_${name}_test SOURCES ${tests} LIBS ${test_libs} GTest::gtest_main LABELS host ${ARG_LABELS})
    set(filter "")
    if("thread" IN_LIST QUIRE_SANITIZE AND ARG_TSAN)
      set(filter "--gtest_filter=${ARG_TSAN}")
    endif()
    add_test(NAME ${name} COMMAND quire_${name}_test ${filter})
    set_tests_properties(${name} PROPERTIES LABELS "host;${ARG_LABELS}")
  endif()
  if(device_tests AND QUIRE_CUDA_ON)
    foreach(dep IN LISTS ARG_DEVICE_DEPS)
      list(APPEND test_libs quire_${dep})
    endforeach()
    quire_test(quire_${name}_device_test SOURCES ${device_tests}
               LIBS ${test_libs} quire_device_main quire_cuda_runtime LABELS device)
    quire_device_test_entry(${name}_device quire_${name}_device_test)
  endif()
endfunction()
