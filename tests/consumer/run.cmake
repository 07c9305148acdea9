# Installs BUILD_DIR to a fresh prefix, then configures, builds and runs the consumer against it.
#   cmake -DBUILD_DIR=... -DSOURCE_DIR=... -DWORK_DIR=... -DGENERATOR=... -DCXX=... -DCXX_FLAGS=... -DTORCH=...
#         -P run.cmake

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\nended with ${result}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK_DIR})
set(prefix ${WORK_DIR}/prefix)
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix})
run(${CMAKE_COMMAND} -G ${GENERATOR} -S ${SOURCE_DIR} -B ${WORK_DIR}/build
    -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_CXX_FLAGS=${CXX_FLAGS})
run(${CMAKE_COMMAND} --build ${WORK_DIR}/build)

run(${WORK_DIR}/build/consumer)
if(NOT output STREQUAL "0x7B is 352, 8 layers\n")
  message(FATAL_ERROR "the consumer printed: ${output}")
endif()
message(STATUS "consumer: ${output}")

if(EXISTS ${WORK_DIR}/build/consumer_torch)
  run(${WORK_DIR}/build/consumer_torch)
  if(NOT output MATCHES "^next token [0-9]+\n$")
    message(FATAL_ERROR "the consumer printed: ${output}")
  endif()
  message(STATUS "consumer_torch: ${output}")
  run(${prefix}/bin/deepinfer-sim formats e4m3fn 0x7B)
  message(STATUS "installed program: ${output}")
elseif(TORCH)
  message(FATAL_ERROR "the package has no target deepinfer_sim::model")
endif()
