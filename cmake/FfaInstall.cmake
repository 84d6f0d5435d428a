# Install rules: library, command, headers, man pages, shell completion, CMake package, pkg-config.
# The installed tree can be moved: nothing in it names its prefix.
include(CMakePackageConfigHelpers)

install(TARGETS ffa EXPORT ffa-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS ffa_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY include/ffa DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

# What src/cli/CMakeLists.txt has the command print.
if(NOT CMAKE_CROSSCOMPILING)
  install(DIRECTORY ${PROJECT_BINARY_DIR}/reference/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1
    FILES_MATCHING PATTERN "*.1")
  install(FILES ${PROJECT_BINARY_DIR}/reference/ffa
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES ${PROJECT_BINARY_DIR}/reference/_ffa
    DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  install(FILES ${PROJECT_BINARY_DIR}/reference/ffa.fish
    DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ffa)
install(EXPORT ffa-targets NAMESPACE ffa:: DESTINATION ${package_dir})
configure_package_config_file(cmake/ffaConfig.cmake.in ${PROJECT_BINARY_DIR}/ffaConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ffaConfigVersion.cmake
  COMPATIBILITY ${FFA_COMPATIBILITY})
install(FILES ${PROJECT_BINARY_DIR}/ffaConfig.cmake ${PROJECT_BINARY_DIR}/ffaConfigVersion.cmake
  DESTINATION ${package_dir})

# The way from the folder of ffa.pc up to the prefix: a ".." for each component of
# lib/<triplet>/pkgconfig.
file(RELATIVE_PATH FFA_PC_UP /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(cmake/ffa.pc.in ${PROJECT_BINARY_DIR}/ffa.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/ffa.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
