# Install rules: library, headers, CMake package, pkg-config.
install(TARGETS ffa EXPORT ffa-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/ffa DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
