# Hostile surroundings.
add_executable(surroundings_program surroundings/surroundings_program.cpp)
target_include_directories(surroundings_program PRIVATE ${CURB_QUALIFIED}/shim/abi)
target_link_libraries(surroundings_program PRIVATE curb_sim_cuda)
add_library(surroundings_clock SHARED surroundings/surroundings_clock.cpp)
add_library(surroundings_harm SHARED surroundings/surroundings_harm.cpp)
# Not under sanitizers, whose runtimes need /proc, descriptors, address space and threads of their own.
curb_python_test(surroundings/surroundings_test)
curb_python_test(surroundings/surroundings_preload_test)
curb_python_test(surroundings/surroundings_upgrade_test ARGS ${CMAKE_COMMAND})
