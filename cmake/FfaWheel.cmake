# What a wheel of the Python package holds beside python/libffa: the library, the libraries that it and the
# command are linked to, the command, and the headers. The run paths name no folder of this machine, so that the
# wheel can be moved; a wheel has no links, so that each library is there once, under its soname.
set_target_properties(ffa PROPERTIES INSTALL_RPATH "$ORIGIN" INSTALL_RPATH_USE_LINK_PATH OFF)
set_target_properties(ffa_cli PROPERTIES INSTALL_RPATH "$ORIGIN/../lib;$ORIGIN" INSTALL_RPATH_USE_LINK_PATH OFF)

install(PROGRAMS $<TARGET_FILE:ffa> DESTINATION libffa/lib RENAME libffa.so.${FFA_SOVERSION} COMPONENT wheel)
install(PROGRAMS $<TARGET_FILE:ffa_cli> DESTINATION libffa/bin COMPONENT wheel)
install(DIRECTORY include/ffa DESTINATION libffa/include COMPONENT wheel FILES_MATCHING PATTERN "*.h")
install(DIRECTORY cache/cost-tables DESTINATION libffa/share COMPONENT wheel FILES_MATCHING PATTERN "*.json")
install(CODE [[
  file(GET_RUNTIME_DEPENDENCIES LIBRARIES $<TARGET_FILE:ffa> EXECUTABLES $<TARGET_FILE:ffa_cli>
    DIRECTORIES $<TARGET_FILE_DIR:ffa>
    RESOLVED_DEPENDENCIES_VAR found UNRESOLVED_DEPENDENCIES_VAR missing
    PRE_INCLUDE_REGEXES "^lib(xxhash|sqlite3|md|jansson)\\.so" PRE_EXCLUDE_REGEXES ".*")
  if(missing)
    message(FATAL_ERROR "not found: ${missing}")
  endif()
  foreach(file IN LISTS found)
    get_filename_component(name ${file} NAME)
    file(COPY_FILE ${file} $ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/libffa/lib/${name})
  endforeach()]] COMPONENT wheel)
