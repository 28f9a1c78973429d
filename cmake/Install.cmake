# cmake --install: the program with its man page and completions, and the libraries as a CMake package:
#
#   find_package(fsdpctl REQUIRED)
#   target_link_libraries(mine PRIVATE fsdpctl::formats)     # or fsdpctl::ckpt, fsdpctl::base
#
# Headers keep their paths: #include "lib/ckpt/format.h", below include/fsdpctl.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# ---- program

set(generated ${PROJECT_BINARY_DIR}/generated)
set(generated_files)
foreach(item IN ITEMS man:fsdpctl.1 bash:fsdpctl.bash zsh:_fsdpctl fish:fsdpctl.fish)
  string(REPLACE ":" ";" item ${item})
  list(GET item 0 what)
  list(GET item 1 file)
  add_custom_command(OUTPUT ${generated}/${file}
                     COMMAND ${CMAKE_COMMAND} -E make_directory ${generated}
                     COMMAND fsdpctl generate ${what} > ${generated}/${file}
                     DEPENDS fsdpctl VERBATIM)
  list(APPEND generated_files ${generated}/${file})
endforeach()
add_custom_target(fsdpctl_generated ALL DEPENDS ${generated_files})

# All that is installed, and nothing else: what `make install` builds.
add_custom_target(fsdpctl_installed)
add_dependencies(fsdpctl_installed fsdpctl_generated fsdpctl fsdpctl_base fsdpctl_ckpt fsdpctl_formats)
if(TARGET fsdpctl_cuda)
  add_dependencies(fsdpctl_installed fsdpctl_cuda)
endif()

install(TARGETS fsdpctl RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(TARGET fsdpctl-train)   # beside fsdpctl, with the path of the LibTorch that it was built with
  add_dependencies(fsdpctl_installed fsdpctl-train)
  install(TARGETS fsdpctl-train RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(FILES ${generated}/fsdpctl.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${generated}/fsdpctl.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME fsdpctl)
install(FILES ${generated}/_fsdpctl DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES ${generated}/fsdpctl.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# ---- libraries

foreach(part IN ITEMS base ckpt formats)
  add_library(fsdpctl::${part} ALIAS fsdpctl_${part})
  set_target_properties(fsdpctl_${part} PROPERTIES EXPORT_NAME ${part})
  target_compile_features(fsdpctl_${part} PUBLIC cxx_std_20)
  target_include_directories(fsdpctl_${part} INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                             $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/fsdpctl>)
endforeach()
install(TARGETS fsdpctl_base fsdpctl_ckpt fsdpctl_formats EXPORT fsdpctl ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/lib ${PROJECT_SOURCE_DIR}/formats DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/fsdpctl
        FILES_MATCHING PATTERN "*.h" REGEX "/lib/(comm|train)$" EXCLUDE)   # of the program only

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/fsdpctl)
install(EXPORT fsdpctl NAMESPACE fsdpctl:: DESTINATION ${package} FILE fsdpctlTargets.cmake)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/fsdpctlConfig.cmake.in ${PROJECT_BINARY_DIR}/fsdpctlConfig.cmake
                              INSTALL_DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/fsdpctlConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/fsdpctlConfig.cmake ${PROJECT_BINARY_DIR}/fsdpctlConfigVersion.cmake DESTINATION ${package})
