# Compiler settings, third-party packages and the helper that declares a library of the project.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
include(GNUInstallDirs)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

find_program(DEEPINFER_SIM_CCACHE ccache)
if(DEEPINFER_SIM_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Without this sloppiness ccache caches nothing that uses a precompiled header. Paths relative to the source
  # tree let clones share the cache.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
      CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${DEEPINFER_SIM_CCACHE})
endif()

find_package(Threads REQUIRED)
find_package(nlohmann_json REQUIRED)

if(DEEPINFER_SIM_TORCH)
  # A machine may have two libtorch, the system's and a Python wheel's. TorchConfig then mixes them, as it
  # looks for its other half, Caffe2, and for libc10 in the system's folders first. Tie Caffe2 to the
  # chosen Torch, and link imported targets, which know their own files, never a file found by name.
  if(Torch_DIR AND EXISTS "${Torch_DIR}/../Caffe2/Caffe2Config.cmake")
    get_filename_component(_caffe2_dir "${Torch_DIR}/../Caffe2" ABSOLUTE)
    set(Caffe2_DIR "${_caffe2_dir}" CACHE PATH "Beside Torch_DIR" FORCE)
  endif()
  find_package(Torch REQUIRED)
  get_filename_component(_torch_parent "${Torch_DIR}" DIRECTORY)
  get_filename_component(_caffe2_parent "${Caffe2_DIR}" DIRECTORY)
  if(NOT _torch_parent STREQUAL _caffe2_parent)
    message(FATAL_ERROR "two libtorch are mixed: ${Torch_DIR} and ${Caffe2_DIR}; "
                        "set Torch_DIR to the one to use")
  endif()
  list(FILTER TORCH_LIBRARIES EXCLUDE REGEX "libc10\\.")
  list(APPEND TORCH_LIBRARIES c10)
  message(STATUS "libtorch ${Torch_VERSION} from ${Torch_DIR}")
  if(Torch_VERSION VERSION_LESS 1.13)
    message(FATAL_ERROR "libtorch ${Torch_VERSION} is too old: 1.13 or newer is needed")
  endif()
  find_package(yaml-cpp REQUIRED)
  if(NOT TARGET yaml-cpp)  # 0.8 and newer have only the namespaced name
    add_library(yaml-cpp ALIAS yaml-cpp::yaml-cpp)
  endif()
  find_package(CLI11 REQUIRED)
endif()

# deepinfer_sim_library(NAME [TORCH] SOURCES file... LINK target...)
# Declares static library deepinfer_sim_NAME with alias deepinfer_sim::NAME. TORCH links libtorch and
# shares the precompiled ATen header.
function(deepinfer_sim_library name)
  cmake_parse_arguments(arg "TORCH" "" "SOURCES;LINK" ${ARGN})
  set(target deepinfer_sim_${name})
  add_library(${target} STATIC ${arg_SOURCES})
  add_library(deepinfer_sim::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/deepinfer_sim>)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} PUBLIC ${arg_LINK})
  deepinfer_sim_warnings(${target})
  # No a*b+c becomes an fma behind our back: bits must not depend on the compiler or its target.
  target_compile_options(${target} PRIVATE -ffp-contract=off)
  if(DEEPINFER_SIM_FAULT_INJECTION)
    target_compile_definitions(${target} PUBLIC DEEPINFER_SIM_FAULT_INJECTION=1)
  endif()
  if(arg_TORCH)
    deepinfer_sim_use_torch(${target})
  endif()
  if(DEEPINFER_SIM_INSTALL)
    install(TARGETS ${target} EXPORT deepinfer_simTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endfunction()

function(deepinfer_sim_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra
    $<$<BOOL:${DEEPINFER_SIM_WERROR}>:-Werror>
    # gcc 12 sees impossible copies in `"text" + std::string` once it is inlined (GCC bug 105651)
    $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict
      -Wno-stringop-overflow -Wno-array-bounds>)
endfunction()

function(deepinfer_sim_use_torch target)
  target_include_directories(${target} SYSTEM PUBLIC "$<BUILD_INTERFACE:${TORCH_INCLUDE_DIRS}>")
  target_link_libraries(${target} PUBLIC ${TORCH_LIBRARIES})
  separate_arguments(_torch_flags UNIX_COMMAND "${TORCH_CXX_FLAGS}")
  target_compile_options(${target} PUBLIC ${_torch_flags})
  deepinfer_sim_precompile(${target})
endfunction()

# Precompiled headers, made once for the platform library. All targets that include ATen reuse them, so
# all are compiled as position-independent code, the programs among them.
function(deepinfer_sim_precompile target)
  if(NOT DEEPINFER_SIM_PCH)
    return()
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    target_compile_options(${target} PRIVATE -fpch-preprocess)  # for ccache
  endif()
  if(target STREQUAL deepinfer_sim_platform)
    target_precompile_headers(${target} PRIVATE <ATen/ATen.h> <string> <vector>)
    return()
  endif()
  get_target_property(_type ${target} TYPE)
  if(_type STREQUAL EXECUTABLE)
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)  # no -fPIE beside it
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
  target_precompile_headers(${target} REUSE_FROM deepinfer_sim_platform)
endfunction()
