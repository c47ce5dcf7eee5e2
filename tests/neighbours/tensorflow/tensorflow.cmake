# TensorFlow's wheel (600 MB) on the simulated driver, in nightly runs. It opens libraries of CUDA 12 when it makes its
# device: here a runtime whose functions all succeed, and six empty libraries, whose functions it needs only for
# products and convolutions.
if(CURB_SANITIZE)
  return()
elseif(NOT CURB_NIGHTLY)
  curb_left_out(tensorflow_test "TensorFlow's wheel is fetched in nightly runs only")
  return()
endif()
set(cuda12 ${PROJECT_BINARY_DIR}/tests/neighbours/cuda12)
function(cuda12_library name version)
  add_library(cuda12_${name} SHARED ${ARGN})
  set_target_properties(cuda12_${name} PROPERTIES OUTPUT_NAME ${name} VERSION ${version} SOVERSION ${version}
    CXX_VISIBILITY_PRESET default LIBRARY_OUTPUT_DIRECTORY ${cuda12})
endfunction()
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/empty.cpp "")
cuda12_library(cudart 12 tensorflow/cudart12.cpp)
foreach(library cublas.12 cublasLt.12 cufft.11 cusolver.11 cusparse.12 cudnn.9)
  string(REPLACE "." ";" library ${library})
  cuda12_library(${library} ${CMAKE_CURRENT_BINARY_DIR}/empty.cpp)
endforeach()
curb_python_test(tensorflow/tensorflow_test ARGS ${cuda12} TIMEOUT 1800)
