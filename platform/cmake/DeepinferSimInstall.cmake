# Install rules beside those of the targets: headers, data, and what find_package(deepinfer_sim) reads.

include(CMakePackageConfigHelpers)

set(_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/deepinfer_sim)
set(DEEPINFER_SIM_DATA_DIR ${CMAKE_INSTALL_DATADIR}/deepinfer-sim)

set(_folders platform sim model)
if(DEEPINFER_SIM_TORCH)
  list(APPEND _folders golden)
endif()
foreach(_folder ${_folders})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${_folder}
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/deepinfer_sim
          FILES_MATCHING PATTERN "*.h"
          PATTERN data EXCLUDE PATTERN cmake EXCLUDE)
endforeach()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/configs DESTINATION ${DEEPINFER_SIM_DATA_DIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/golden/data DESTINATION ${DEEPINFER_SIM_DATA_DIR}/golden)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

install(EXPORT deepinfer_simTargets NAMESPACE deepinfer_sim:: DESTINATION ${_package_dir})
set(DEEPINFER_SIM_CLUSTER OFF)  # what the configuration file asks for Boost
if(TARGET deepinfer_sim_cluster)
  set(DEEPINFER_SIM_CLUSTER ON)
endif()
configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/deepinfer_sim-config.cmake.in
  ${PROJECT_BINARY_DIR}/deepinfer_sim-config.cmake
  INSTALL_DESTINATION ${_package_dir}
  PATH_VARS DEEPINFER_SIM_DATA_DIR)
# Below 1.0 every minor version may break its users.
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/deepinfer_sim-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/deepinfer_sim-config.cmake
              ${PROJECT_BINARY_DIR}/deepinfer_sim-config-version.cmake
        DESTINATION ${_package_dir})
