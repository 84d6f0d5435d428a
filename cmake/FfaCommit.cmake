# usage: cmake -DSOURCE=DIR -DOUT=FILE -P FfaCommit.cmake
# Writes FILE, which defines FFA_COMMIT: the commit that SOURCE is at, with "-dirty" where files
# differ from it. A tarball of `git archive` has the commit in cmake/commit.txt. Else it is
# "unknown". FILE is left alone where nothing changed, so that nothing is compiled again.
set(commit unknown)
file(STRINGS ${SOURCE}/cmake/commit.txt exported LIMIT_COUNT 1)
if(exported MATCHES "^[0-9a-f]+$")
  string(SUBSTRING ${exported} 0 12 commit)
elseif(EXISTS ${SOURCE}/.git) # SOURCE itself, not a repository around it
  execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude *
    OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed AND described MATCHES "^[0-9a-f]+(-dirty)?$")
    set(commit ${described})
  endif()
endif()
set(text "#define FFA_COMMIT \"${commit}\"\n")
set(old "")
if(EXISTS ${OUT})
  file(READ ${OUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUT} "${text}")
endif()
