# Packages, by CPack: Debian's (one a component), an archive of the installed tree, and the sources.
#
#   cmake --preset package && cmake --build --preset package     the first two, in build-package, with FFA_PORTABLE
#   cmake --build --preset package --target package_source       the third: what git has of HEAD
#
# ffa_debian_package() declares a Debian package. Another part of the tree, such as a binding, installs
# its files with a component of its own and calls it before CPack is included, below.
set(FFA_PACKAGE_CONTACT "libffa maintainers <libffa@example.org>" CACHE STRING
    "Who answers for the packages: a name and an address")
set(CPACK_PACKAGE_NAME libffa)
set(CPACK_PACKAGE_VENDOR libffa)
set(CPACK_PACKAGE_CONTACT ${FFA_PACKAGE_CONTACT})
# CPack's own default, which it leaves out, so that the title of a Debian package stands first.
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${CMAKE_PROJECT_NAME} built using CMake")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGE_FILE_NAME libffa-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/FfaPackageStage.cmake)
set(CPACK_FFA_SOURCE_DIR ${PROJECT_SOURCE_DIR})

# An archive has the whole tree, Debian's packages are one a component.
find_program(FFA_DPKG_SHLIBDEPS dpkg-shlibdeps)
mark_as_advanced(FFA_DPKG_SHLIBDEPS)
set(CPACK_GENERATOR TGZ)
if(FFA_DPKG_SHLIBDEPS)
  list(APPEND CPACK_GENERATOR DEB)
endif()
set(CPACK_COMPONENTS_ALL "")
set(CPACK_ARCHIVE_COMPONENT_INSTALL OFF)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
# Sorts before a package of Debian's own, whose revisions begin with 1.
set(CPACK_DEBIAN_PACKAGE_RELEASE 0ffa1)
set(CPACK_DEBIAN_PACKAGE_SOURCE libffa)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY "=")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

# ffa_debian_package(COMPONENT NAME SECTION DEPENDS TITLE TEXT): the files of COMPONENT are the package
# NAME. DEPENDS: beside what its programs and libraries link; may be empty. TEXT: what this package has,
# in lines of up to 79 characters.
macro(ffa_debian_package component name section depends title text)
  string(TOUPPER ${component} upper)
  list(APPEND CPACK_COMPONENTS_ALL ${component})
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${name})
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${section})
  set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "${depends}")
  set(CPACK_DEBIAN_${upper}_DESCRIPTION "${title}
libffa specialises one attention kernel template for a model's head dimension
and data type when it runs, and executes it for any mask that is a union of
slices: packed documents, sliding windows, block-causal and block-sparse
patterns.
.
${text}")
endmacro()

set(same_version "(= ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})")
set(library_package libffa${FFA_SOVERSION})
ffa_debian_package(library ${library_package} libs ""
  "attention kernels for packed and irregular masks"
  "This package has the library. CUDA is not needed to install it: NVRTC and the
CUDA runtime are opened when a kernel is compiled or a GPU is asked for.")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/cmake/triggers)
ffa_debian_package(dev libffa-dev libdevel "${library_package} ${same_version}"
  "attention kernels for packed and irregular masks (development)"
  "This package has the headers, the files for CMake and pkg-config, and examples.")
ffa_debian_package(tools libffa-tools utils "${library_package} ${same_version}"
  "attention kernels for packed and irregular masks (command)"
  "This package has the command ffa, which draws and plans masks, simulates ranks,
compiles, runs and times attention, and looks after the store of kernels.")
if(CMAKE_INSTALL_LIBDIR MATCHES "/") # lib/<triplet>: several architectures can be installed at once
  set(CPACK_DEBIAN_LIBRARY_PACKAGE_MULTIARCH same)
endif()
# For Debian's python3 alone: everybody else takes the wheel.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/python/libffa DESTINATION lib/python3/dist-packages COMPONENT python
  EXCLUDE_FROM_ALL FILES_MATCHING PATTERN "*.py" PATTERN py.typed PATTERN __pycache__ EXCLUDE)
ffa_debian_package(python python3-libffa python "${library_package} ${same_version}, python3 (>= 3.9)"
  "attention kernels for packed and irregular masks (Python)"
  "This package has the Python package libffa, which calls the library by ctypes:
masks, attention on PyTorch's tensors, context parallelism. PyTorch is not
needed to install it.")
set(CPACK_DEBIAN_PYTHON_PACKAGE_ARCHITECTURE all)

set(CPACK_SOURCE_GENERATOR TGZ)
set(CPACK_SOURCE_PACKAGE_FILE_NAME libffa-${PROJECT_VERSION})
# Nothing is copied: cmake/FfaPackageStage.cmake has git write the sources.
set(CPACK_SOURCE_INSTALLED_DIRECTORIES ${PROJECT_SOURCE_DIR}/cmake /cmake)
include(CPack)
