# Install rules: library, command, headers, man pages, shell completion, CMake package, pkg-config,
# licence and examples; and the target 'uninstall'. The installed tree can be moved: nothing in it
# names its prefix. Components are the packages of cmake/FfaPackage.cmake: library, dev and tools;
# 'doc' is in none of them, because each Debian package has these texts in a form of its own.
include(CMakePackageConfigHelpers)

install(TARGETS ffa EXPORT ffa-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  COMPONENT library NAMELINK_COMPONENT dev)
install(TARGETS ffa_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
install(DIRECTORY include/ffa DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev FILES_MATCHING PATTERN "*.h")

# Where src/choose/cost_tables.c looks for them; there may be none.
install(DIRECTORY cache/cost-tables DESTINATION ${CMAKE_INSTALL_DATADIR}/libffa COMPONENT library
  FILES_MATCHING PATTERN "*.json")

# What src/cli/CMakeLists.txt has the command print.
if(NOT CMAKE_CROSSCOMPILING)
  install(DIRECTORY ${PROJECT_BINARY_DIR}/reference/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1
    COMPONENT tools FILES_MATCHING PATTERN "*.1")
  install(FILES ${PROJECT_BINARY_DIR}/reference/ffa
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT tools)
  install(FILES ${PROJECT_BINARY_DIR}/reference/_ffa
    DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions COMPONENT tools)
  install(FILES ${PROJECT_BINARY_DIR}/reference/ffa.fish
    DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT tools)
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ffa)
install(EXPORT ffa-targets NAMESPACE ffa:: DESTINATION ${package_dir} COMPONENT dev)
configure_package_config_file(cmake/ffaConfig.cmake.in ${PROJECT_BINARY_DIR}/ffaConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ffaConfigVersion.cmake
  COMPATIBILITY ${FFA_COMPATIBILITY})
install(FILES ${PROJECT_BINARY_DIR}/ffaConfig.cmake ${PROJECT_BINARY_DIR}/ffaConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT dev)

# The way from the folder of ffa.pc up to the prefix: a ".." for each component of
# lib/<triplet>/pkgconfig.
file(RELATIVE_PATH FFA_PC_UP /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(cmake/ffa.pc.in ${PROJECT_BINARY_DIR}/ffa.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/ffa.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)

# Licence, changes and examples. Those in C build where they are, by their own CMakeLists.txt.
set(FFA_DOCDIR ${CMAKE_INSTALL_DATAROOTDIR}/doc/libffa)
install(FILES LICENSE CHANGELOG.md DESTINATION ${FFA_DOCDIR} COMPONENT doc)
install(DIRECTORY examples DESTINATION ${FFA_DOCDIR} COMPONENT dev
  PATTERN __pycache__ EXCLUDE PATTERN "*.svg" EXCLUDE)

# cmake --build BUILD --target uninstall: removes what the last installation of BUILD has written.
if(PROJECT_IS_TOP_LEVEL)
  add_custom_target(uninstall COMMAND ${CMAKE_COMMAND} -DMANIFEST=${PROJECT_BINARY_DIR}/install_manifest.txt
    -P ${PROJECT_SOURCE_DIR}/cmake/FfaUninstall.cmake VERBATIM)
endif()
