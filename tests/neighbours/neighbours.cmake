# Other preloads, allocators and libraries in one process with libcurb.so. Not under sanitizers: their runtime must be
# the only neighbour, other programs lack it, and every other test of these builds has it beside libcurb.so.
set(preloads "")
foreach(preload counts_by_dlsym counts_by_symbol dlsym_by_next dlsym_of_libc gone_at_end locks_at_fork logs_by_spdlog sets_handlers)
  add_library(neighbour_${preload} SHARED preloads/${preload}.cpp)
  target_include_directories(neighbour_${preload} PRIVATE ${CURB_QUALIFIED}/shim/abi)
  target_link_libraries(neighbour_${preload} PRIVATE ${CMAKE_DL_LIBS})
  # Optimised in every build: they must forward by a tail call.
  target_compile_options(neighbour_${preload} PRIVATE -O2)
  list(APPEND preloads neighbour_${preload})
endforeach()

target_include_directories(neighbour_logs_by_spdlog SYSTEM PRIVATE ${CURB_SPDLOG_HEADERS})
target_compile_definitions(neighbour_logs_by_spdlog PRIVATE SPDLOG_FMT_EXTERNAL FMT_HEADER_ONLY)
set_target_properties(neighbour_logs_by_spdlog PROPERTIES CXX_VISIBILITY_PRESET default VISIBILITY_INLINES_HIDDEN OFF)

# A host's own definitions of every name within libcurb.so.
set(foreign ${CMAKE_CURRENT_BINARY_DIR}/foreign_curbs.s ${CMAKE_CURRENT_BINARY_DIR}/foreign_all.s)
add_custom_command(OUTPUT ${foreign}
  COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/foreign_definitions.py $<TARGET_FILE:curb_shim> ${foreign}
  DEPENDS foreign_definitions.py curb_shim)
foreach(which curbs all)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/foreign_${which}.o)
  add_custom_command(OUTPUT ${object}
    COMMAND ${CMAKE_CXX_COMPILER} -c ${CMAKE_CURRENT_BINARY_DIR}/foreign_${which}.s -o ${object}
    DEPENDS ${CMAKE_CURRENT_BINARY_DIR}/foreign_${which}.s)
  add_library(neighbour_foreign_${which} SHARED ${object})
  # Linked as C, without libstdc++: the object itself defines those names.
  set_target_properties(neighbour_foreign_${which} PROPERTIES LINKER_LANGUAGE C)
  list(APPEND preloads neighbour_foreign_${which})
endforeach()

add_executable(neighbour_scenarios neighbour_scenarios.cpp)
add_executable(throwing_new_scenarios throwing_new_scenarios.cpp)
foreach(program neighbour_scenarios throwing_new_scenarios)
  target_include_directories(${program} PRIVATE
    ${PROJECT_SOURCE_DIR}/tests/process/helpers ${CURB_QUALIFIED}/shim/abi ${PROJECT_SOURCE_DIR}/tests/sim)
  target_link_libraries(${program} PRIVATE scenario_main curb_sim_cuda curb_sim_nvml Threads::Threads ${CMAKE_DL_LIBS})
endforeach()
# A plugin whose references to its own symbols are bound when it is linked.
add_library(plugin_symbolic SHARED ${PROJECT_SOURCE_DIR}/tests/process/plugins/bound.cpp)
target_include_directories(plugin_symbolic PRIVATE ${CURB_QUALIFIED}/shim/abi)
target_link_libraries(plugin_symbolic PRIVATE curb_sim_cuda)
target_link_options(plugin_symbolic PRIVATE -Wl,-Bsymbolic)
list(APPEND preloads plugin_symbolic)
set_target_properties(${preloads} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/neighbours)

execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libasan.so
  OUTPUT_VARIABLE asan OUTPUT_STRIP_TRAILING_WHITESPACE)
curb_python_test(neighbours_test ARGS ${asan} TIMEOUT ${CURB_MATRIX_TIMEOUT})
# The programs of this machine, most of which never use a GPU.
curb_python_test(programs_test TIMEOUT ${CURB_MATRIX_TIMEOUT})
# The build of curb itself.
curb_python_test(own_build_test TIMEOUT ${CURB_MATRIX_TIMEOUT}
  ENVIRONMENT CXX=${CMAKE_CXX_COMPILER} CC=${CMAKE_C_COMPILER})
