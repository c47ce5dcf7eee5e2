# Hostile surroundings.
find_package(Python3 COMPONENTS Interpreter REQUIRED)
add_executable(surroundings_program surroundings_program.cpp)
target_include_directories(surroundings_program PRIVATE ${PROJECT_SOURCE_DIR}/shim/abi)
target_link_libraries(surroundings_program PRIVATE curb_sim_cuda)
add_library(surroundings_clock SHARED surroundings_clock.cpp)
set_target_properties(surroundings_program surroundings_clock PROPERTIES
  RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
add_dependencies(surroundings_program curb curb_shim curb_sim_nvml surroundings_clock)
# Not under sanitizers, whose runtimes need /proc, descriptors, address space and threads of their own.
if(NOT CURB_SANITIZE)
  add_test(NAME surroundings_test COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/surroundings_test.py
    $<TARGET_FILE:curb> $<TARGET_FILE:curb_shim> $<TARGET_FILE_DIR:curb_sim_cuda> $<TARGET_FILE:surroundings_program>
    $<TARGET_FILE:surroundings_clock>)
  set_tests_properties(surroundings_test PROPERTIES TIMEOUT 300 LABELS neighbours)
endif()
