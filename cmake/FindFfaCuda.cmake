# Finds the CUDA runtime and the headers of NVRTC: in FFA_CUDA_ROOT, a folder with include/ and lib/
# such as NVIDIA's Python wheels unpack to, or else in a CUDA Toolkit >= 12.8. Defines Ffa::cudart,
# FfaCuda_INCLUDE_DIR and FfaCuda_LIBRARY_DIR, where the library looks for NVRTC beside other places.
if(FFA_CUDA_ROOT)
  find_path(FfaCuda_INCLUDE_DIR cuda_runtime_api.h PATHS ${FFA_CUDA_ROOT}/include NO_DEFAULT_PATH)
  find_library(FfaCuda_CUDART NAMES cudart libcudart.so.13 libcudart.so.12
               PATHS ${FFA_CUDA_ROOT}/lib ${FFA_CUDA_ROOT}/lib64 NO_DEFAULT_PATH)
  if(FfaCuda_CUDART)
    get_filename_component(FfaCuda_LIBRARY_DIR ${FfaCuda_CUDART} DIRECTORY)
  endif()
else()
  find_package(CUDAToolkit 12.8 QUIET)
  if(CUDAToolkit_FOUND)
    list(GET CUDAToolkit_INCLUDE_DIRS 0 FfaCuda_INCLUDE_DIR)
    set(FfaCuda_CUDART ${CUDA_cudart_LIBRARY})
    get_filename_component(FfaCuda_LIBRARY_DIR ${CUDA_cudart_LIBRARY} DIRECTORY)
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(FfaCuda
  REQUIRED_VARS FfaCuda_CUDART FfaCuda_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "CUDA Toolkit >= 12.8 was not found. Install it from https://developer.nvidia.com/cuda-downloads, or set FFA_CUDA_ROOT to NVIDIA's wheels: pip download nvidia-cuda-runtime nvidia-cuda-nvrtc (./demo and ./test do that)")

if(FfaCuda_FOUND AND NOT TARGET Ffa::cudart)
  add_library(Ffa::cudart UNKNOWN IMPORTED)
  set_target_properties(Ffa::cudart PROPERTIES IMPORTED_LOCATION ${FfaCuda_CUDART}
    INTERFACE_INCLUDE_DIRECTORIES ${FfaCuda_INCLUDE_DIR} INTERFACE_SYSTEM_INCLUDE_DIRECTORIES ${FfaCuda_INCLUDE_DIR})
endif()
mark_as_advanced(FfaCuda_INCLUDE_DIR FfaCuda_CUDART)
