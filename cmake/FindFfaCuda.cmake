# Finds the headers of the CUDA runtime and NVRTC: in FFA_CUDA_ROOT, a folder with include/ and lib/
# such as NVIDIA's Python wheels unpack to, or else in a CUDA Toolkit >= 12.8. No library is linked,
# so none need be there. Defines Ffa::cuda, FfaCuda_VERSION and FfaCuda_LIBRARY_DIR, where libffa
# looks for the libraries at run time beside other places; it is empty where it is not known.
if(FFA_CUDA_ROOT)
  find_path(FfaCuda_INCLUDE_DIR cuda_runtime_api.h PATHS ${FFA_CUDA_ROOT}/include NO_DEFAULT_PATH)
else()
  # The toolkit that PATH's nvcc is of comes before the usual places.
  find_program(FfaCuda_NVCC nvcc)
  set(toolkit "")
  if(FfaCuda_NVCC)
    get_filename_component(toolkit ${FfaCuda_NVCC} REALPATH)
    get_filename_component(toolkit ${toolkit}/../.. ABSOLUTE)
  endif()
  # A wheel's build has NVIDIA's wheels beside it; they come last.
  set(wheels "")
  if(SKBUILD AND Python_EXECUTABLE)
    execute_process(COMMAND ${Python_EXECUTABLE} -c "import nvidia; print(list(nvidia.__path__)[0])"
                    OUTPUT_VARIABLE wheels OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  find_path(FfaCuda_INCLUDE_DIR cuda_runtime_api.h
            HINTS ${CUDAToolkit_ROOT} ENV CUDA_HOME ENV CUDA_PATH ${toolkit} /usr/local/cuda /opt/cuda
            PATHS ${wheels}/cu13 PATH_SUFFIXES include)
endif()

if(FfaCuda_INCLUDE_DIR AND EXISTS ${FfaCuda_INCLUDE_DIR}/cuda.h)
  file(STRINGS ${FfaCuda_INCLUDE_DIR}/cuda.h line REGEX "^#define CUDA_VERSION [0-9]+" LIMIT_COUNT 1)
  string(REGEX REPLACE "[^0-9]" "" number "${line}")
  if(number)
    math(EXPR major "${number} / 1000")
    math(EXPR minor "${number} % 1000 / 10")
    set(FfaCuda_VERSION ${major}.${minor})
  endif()
  set(FfaCuda_LIBRARY_DIR "")
  foreach(folder lib64 lib)
    file(GLOB found ${FfaCuda_INCLUDE_DIR}/../${folder}/libcudart.so*)
    if(found AND NOT FfaCuda_LIBRARY_DIR)
      get_filename_component(FfaCuda_LIBRARY_DIR ${FfaCuda_INCLUDE_DIR}/../${folder} ABSOLUTE)
    endif()
  endforeach()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(FfaCuda
  REQUIRED_VARS FfaCuda_INCLUDE_DIR VERSION_VAR FfaCuda_VERSION
  REASON_FAILURE_MESSAGE "The headers of CUDA Toolkit >= 12.8 were not found. Install it from https://developer.nvidia.com/cuda-downloads, or take NVIDIA's wheels: pip install --target DIR nvidia-cuda-runtime nvidia-cuda-nvrtc nvidia-cuda-crt, then set FFA_CUDA_ROOT to DIR/nvidia/cu13 (./demo and ./test do that)")

if(FfaCuda_FOUND AND NOT TARGET Ffa::cuda)
  add_library(Ffa::cuda INTERFACE IMPORTED)
  set_target_properties(Ffa::cuda PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${FfaCuda_INCLUDE_DIR}
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES ${FfaCuda_INCLUDE_DIR})
endif()
mark_as_advanced(FfaCuda_INCLUDE_DIR FfaCuda_NVCC)
