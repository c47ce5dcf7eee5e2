# Hostile surroundings.
find_package(Python3 COMPONENTS Interpreter REQUIRED)
add_executable(surroundings_program surroundings_program.cpp)
target_include_directories(surroundings_program PRIVATE ${PROJECT_SOURCE_DIR}/shim/abi)
target_link_libraries(surroundings_program PRIVATE curb_sim_cuda)
add_library(surroundings_clock SHARED surroundings_clock.cpp)
add_library(surroundings_harm SHARED surroundings_harm.cpp)
set_target_properties(surroundings_program surroundings_clock surroundings_harm PROPERTIES
  RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
add_dependencies(surroundings_program curb curb_shim curb_sim_nvml surroundings_clock)
# Not under sanitizers, whose runtimes need /proc, descriptors, address space and threads of their own.
if(NOT CURB_SANITIZE)
  add_test(NAME surroundings_test COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/surroundings_test.py
    $<TARGET_FILE:curb> $<TARGET_FILE:curb_shim> $<TARGET_FILE_DIR:curb_sim_cuda> $<TARGET_FILE:surroundings_program>
    $<TARGET_FILE:surroundings_clock>)
  set_tests_properties(surroundings_test PROPERTIES TIMEOUT 300 LABELS neighbours)
  # 77: without root, or where no mount namespace can be made.
  add_test(NAME surroundings_preload_test COMMAND Python3::Interpreter
    ${CMAKE_CURRENT_SOURCE_DIR}/surroundings_preload_test.py
    ${PROJECT_SOURCE_DIR}/cli/curb-preload $<TARGET_FILE:curb_shim> $<TARGET_FILE:surroundings_harm>)
  set_tests_properties(surroundings_preload_test PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 300 LABELS neighbours)
  add_test(NAME surroundings_upgrade_test COMMAND Python3::Interpreter
    ${CMAKE_CURRENT_SOURCE_DIR}/surroundings_upgrade_test.py ${CMAKE_COMMAND} ${PROJECT_BINARY_DIR}
    $<TARGET_FILE:curb> $<TARGET_FILE_DIR:curb_sim_cuda> $<TARGET_FILE:surroundings_program>)
  set_tests_properties(surroundings_upgrade_test PROPERTIES TIMEOUT 120 LABELS neighbours)
endif()
