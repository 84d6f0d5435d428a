# Defines ffa_hardening, which is linked into what is installed: what compiler and linker have
# against memory errors that get as far as an attack. Empty with -DFFA_HARDEN=OFF.
#
# Each flag is used where the compiler knows it. _FORTIFY_SOURCE needs optimisation, and is undefined
# first because distributions' compilers define it. Sanitizers replace it.
include(CheckCCompilerFlag)
include(CheckPIESupported)
check_pie_supported()
add_library(ffa_hardening INTERFACE)
if(NOT FFA_HARDEN)
  return()
endif()

foreach(flag -fstack-protector-strong -fstack-clash-protection -fcf-protection)
  string(MAKE_C_IDENTIFIER FFA_HAS${flag} known)
  check_c_compiler_flag("${flag} -Werror" ${known})
  if(${known})
    target_compile_options(ffa_hardening INTERFACE ${flag})
  endif()
endforeach()

# GCC 12 and Clang 9 have level 3.
set(level 2)
if((CMAKE_C_COMPILER_ID STREQUAL "GNU" AND CMAKE_C_COMPILER_VERSION VERSION_GREATER_EQUAL 12)
   OR (CMAKE_C_COMPILER_ID STREQUAL "Clang" AND CMAKE_C_COMPILER_VERSION VERSION_GREATER_EQUAL 9))
  set(level 3)
endif()
if(NOT FFA_SANITIZE)
  target_compile_options(ffa_hardening INTERFACE
    $<$<CONFIG:Release,RelWithDebInfo,MinSizeRel>:-U_FORTIFY_SOURCE>
    $<$<CONFIG:Release,RelWithDebInfo,MinSizeRel>:-D_FORTIFY_SOURCE=${level}>)
endif()
target_link_options(ffa_hardening INTERFACE -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
