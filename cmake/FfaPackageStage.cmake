# What CPack runs between installing into its staging folder and packing that.
#
# Of Debian's packages each gets what Debian's policy asks for: a copyright file, change logs, compressed
# manual pages, completion for zsh in Debian's folder, and no run path, because the loader finds the
# library in the system's folder. In an archive the command looks for its library beside itself, and
# nowhere else. The sources are those of git's HEAD, whose cmake/commit.txt says which commit that is.
set(stage ${CPACK_TEMPORARY_INSTALL_DIRECTORY})
set(source ${CPACK_FFA_SOURCE_DIR})

# The day of this version, from the heading "## 0.1.0 - 2026-11-23" of CHANGELOG.md, in seconds; today
# where the version is unreleased. All files of a package get this time, too, unless one is asked for.
function(release_time)
  if(DEFINED ENV{SOURCE_DATE_EPOCH})
    return()
  endif()
  file(STRINGS ${source}/CHANGELOG.md heading REGEX "^## ${CPACK_PACKAGE_VERSION} - " LIMIT_COUNT 1)
  if(NOT heading MATCHES " - ([0-9]+)-0?([0-9]+)-0?([0-9]+)$")
    return()
  endif()
  # Days since 1970, with years that begin in March.
  math(EXPR year "${CMAKE_MATCH_1} - (14 - ${CMAKE_MATCH_2}) / 12")
  math(EXPR month "(${CMAKE_MATCH_2} + 9) % 12")
  math(EXPR days "365 * ${year} + ${year} / 4 - ${year} / 100 + ${year} / 400 + (153 * ${month} + 2) / 5 + ${CMAKE_MATCH_3} - 719469")
  math(EXPR seconds "86400 * ${days}")
  set(ENV{SOURCE_DATE_EPOCH} ${seconds})
endfunction()

function(compress)
  foreach(file IN LISTS ARGN)
    execute_process(COMMAND gzip -9n ${file} COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
endfunction()

function(write_documents folder)
  string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
  string(TIMESTAMP year "%Y" UTC)
  file(WRITE ${folder}/copyright "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: libffa

Files: *
Copyright: ${year} the libffa authors
License: Apache-2.0
 On Debian systems the text of the Apache License, version 2.0, is in
 /usr/share/common-licenses/Apache-2.0.
")
  file(WRITE ${folder}/changelog.Debian "libffa (${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}) unstable; urgency=medium

  * Version ${CPACK_PACKAGE_VERSION}; changelog.gz says what is new.

 -- ${CPACK_PACKAGE_CONTACT}  ${date}
")
  file(COPY_FILE ${source}/CHANGELOG.md ${folder}/changelog)
  compress(${folder}/changelog.Debian ${folder}/changelog)
endfunction()

# root: what becomes / of the package `name`.
function(finish_debian component root name)
  set(share ${root}/usr/share)
  file(GLOB pages ${share}/man/man1/*.1)
  compress(${pages})
  if(EXISTS ${share}/zsh/site-functions)
    file(RENAME ${share}/zsh/site-functions ${share}/zsh/vendor-completions)
  endif()
  if(EXISTS ${share}/doc/libffa)
    file(RENAME ${share}/doc/libffa ${share}/doc/${name})
  endif()
  write_documents(${share}/doc/${name})
  if(component STREQUAL library)
    file(WRITE ${share}/lintian/overrides/${name} "# CPack adds the call to every package with a library; the trigger does the work.
${name}: maintscript-calls-ldconfig *
")
  endif()
endfunction()

# Takes from the run path of a file the folders of this machine, or, with ALL, every folder.
function(cut_run_path file)
  if(IS_SYMLINK ${file})
    return()
  endif()
  file(READ_ELF ${file} RUNPATH old CAPTURE_ERROR ignored)
  string(REPLACE ":" ";" kept "${old}")
  list(FILTER kept INCLUDE REGEX "^\\$ORIGIN")
  if("${ARGN}" STREQUAL ALL)
    set(kept "")
  endif()
  list(JOIN kept ":" new)
  if(old AND NOT new)
    file(RPATH_REMOVE FILE ${file})
  elseif(NOT old STREQUAL new)
    file(RPATH_CHANGE FILE ${file} OLD_RPATH "${old}" NEW_RPATH "${new}")
  endif()
endfunction()

release_time()
if(CPACK_GENERATOR STREQUAL DEB)
  foreach(component IN LISTS CPACK_COMPONENTS_ALL)
    string(TOUPPER ${component} upper)
    set(root ${stage}/${component})
    finish_debian(${component} ${root} ${CPACK_DEBIAN_${upper}_PACKAGE_NAME})
    file(GLOB_RECURSE files ${root}/usr/bin/* ${root}/usr/lib/*.so*)
    foreach(file IN LISTS files)
      cut_run_path(${file} ALL)
    endforeach()
  endforeach()
elseif(CPACK_INSTALL_CMAKE_PROJECTS)
  # Of the run path only what is relative to the file; and PREFIX/bin, not PREFIX/usr/bin.
  file(GLOB_RECURSE files ${stage}/usr/bin/* ${stage}/usr/lib/*.so*)
  foreach(file IN LISTS files)
    cut_run_path(${file})
  endforeach()
  file(GLOB folders RELATIVE ${stage}/usr ${stage}/usr/*)
  foreach(folder IN LISTS folders)
    file(RENAME ${stage}/usr/${folder} ${stage}/${folder})
  endforeach()
  file(REMOVE_RECURSE ${stage}/usr)
else()
  if(NOT EXISTS ${source}/.git)
    message(FATAL_ERROR "the sources are packed from git, and ${source} is not a repository")
  endif()
  file(REMOVE_RECURSE ${stage}/cmake)
  execute_process(COMMAND git -C ${source} archive HEAD COMMAND tar -x -C ${stage} COMMAND_ERROR_IS_FATAL ANY)
endif()
