# What `cmake --install` gives to C++ programs: headers, libccl_lab.a, libccl_lab.so, a CMake package and a pkg-config file.
#
# Is: two libraries from the objects of the folders of src/ that the public API stands on.
# Is not: part of the Python wheel, which has its own module.
#
# Invariants
#  - The shared library shows the classes of the public headers and nothing else (exports.map).
#  - What is installed names no path of the machine it was built on.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(ccl_package_folders ccl_api ccl_registry ccl_arena ccl_node ccl_reduce ccl_base)
set(ccl_package_objects "")
foreach(folder ${ccl_package_folders})
  list(APPEND ccl_package_objects $<TARGET_OBJECTS:${folder}>)
endforeach()

foreach(kind static shared)
  string(TOUPPER ${kind} KIND)
  add_library(ccl_lab_${kind} ${KIND} ${ccl_package_objects})
  set_target_properties(ccl_lab_${kind} PROPERTIES OUTPUT_NAME ccl_lab EXPORT_NAME ${kind} LINKER_LANGUAGE CXX)
  target_include_directories(ccl_lab_${kind} INTERFACE $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>
                                                       $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(ccl_lab_${kind} INTERFACE cxx_std_20)
  target_link_libraries(ccl_lab_${kind} PUBLIC Threads::Threads)
endforeach()
set(ccl_exports ${CMAKE_CURRENT_LIST_DIR}/exports.map)
target_link_options(ccl_lab_shared PRIVATE -Wl,--version-script=${ccl_exports} -Wl,-z,defs)
set_target_properties(ccl_lab_shared PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
                                                LINK_DEPENDS ${ccl_exports})

set(ccl_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ccl_lab)
install(TARGETS ccl_lab_static ccl_lab_shared EXPORT ccl_labTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ccl_lab
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ccl_lab)
install(FILES include/ccl_lab/communicator.hpp include/ccl_lab/export.hpp include/ccl_lab/schema.hpp
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ccl_lab COMPONENT ccl_lab)
install(EXPORT ccl_labTargets NAMESPACE ccl_lab:: DESTINATION ${ccl_package_dir} COMPONENT ccl_lab)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/ccl_labConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/ccl_labConfig.cmake
                              INSTALL_DESTINATION ${ccl_package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/ccl_labConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ccl_labConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/ccl_labConfigVersion.cmake
        DESTINATION ${ccl_package_dir} COMPONENT ccl_lab)

# Where the package lies is found from where the .pc file lies, so that the folder can be moved.
file(RELATIVE_PATH ccl_pc_to_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file(${CMAKE_CURRENT_LIST_DIR}/ccl_lab.pc.in ${CMAKE_CURRENT_BINARY_DIR}/ccl_lab.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ccl_lab.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT ccl_lab)
