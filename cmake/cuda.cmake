# CUDA on or off, decided here and nowhere else. QUIRE_CUDA_ON is the decision; the sources know nothing of it:
# a build without CUDA links the folders no_cuda/ and absent/ in place of cuda/.
#   QUIRE_CUDA        AUTO: on when an nvcc is found (and no sanitizer is asked for); ON; OFF
#   QUIRE_CUDA_ARCHS  targets of the kernels, machine code only (no PTX): 90a is Hopper with all it has
set(QUIRE_CUDA AUTO CACHE STRING "CUDA: AUTO, ON or OFF")
set_property(CACHE QUIRE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(QUIRE_CUDA_ARCHS "90a" CACHE STRING "CUDA targets, semicolon list: 90a, 80, 100a, ...")

set(QUIRE_CUDA_ON OFF)
if(NOT QUIRE_CUDA STREQUAL "OFF")
  find_program(QUIRE_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
  if(QUIRE_NVCC AND NOT (QUIRE_CUDA STREQUAL "AUTO" AND QUIRE_SANITIZE))
    set(QUIRE_CUDA_ON ON)
  elseif(NOT QUIRE_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "QUIRE_CUDA is ${QUIRE_CUDA} and no nvcc is found: set CUDA_HOME, or QUIRE_CUDA=OFF.")
  endif()
endif()

if(QUIRE_CUDA_ON)
  # The targets are ours to write: -arch=sm_90a as CMake would say it is not the same as this -gencode.
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  set(CMAKE_CUDA_COMPILER "${QUIRE_NVCC}" CACHE FILEPATH "nvcc")
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  if(QUIRE_CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${QUIRE_CCACHE})
  endif()
  enable_language(CUDA)
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  # CMake before 3.26 does not know that nvcc takes C++20.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  string(REPLACE "-DNDEBUG" "" CMAKE_CUDA_FLAGS_RELEASE "${CMAKE_CUDA_FLAGS_RELEASE}")
  foreach(arch IN LISTS QUIRE_CUDA_ARCHS)
    string(APPEND CMAKE_CUDA_FLAGS " -gencode=arch=compute_${arch},code=sm_${arch}")
  endforeach()
  # fmt takes nvcc's front end for one without constexpr, and then does not compile in C++20.
  string(APPEND CMAKE_CUDA_FLAGS " -DFMT_USE_CONSTEXPR=1")
  # A kernel's host side is held to the same warnings; 177: a constexpr helper that one target does not use.
  string(APPEND CMAKE_CUDA_FLAGS " -Xcompiler=-Wall,-Wextra,-Wno-unused-parameter --expt-relaxed-constexpr -diag-suppress=177")
  find_package(CUDAToolkit REQUIRED)
  # The runtime travels inside the program and looks for the driver when it starts, so one program serves
  # machines with and without a GPU.
  add_library(quire_cuda_runtime INTERFACE)
  target_link_libraries(quire_cuda_runtime INTERFACE CUDA::cudart_static)
endif()
