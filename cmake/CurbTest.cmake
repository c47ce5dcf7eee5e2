# Registers tests with ctest. A test has its source's name; its label is its folder's name. Those of CURB_LONG_FOLDERS also have
# the label long: scripts/test --quick leaves them out, and scripts/mutants runs only those that its table names.
#
#   curb_catch_test(size_test SOURCES size_test.cpp LIBS curb_policy)   a program in Catch2: build/tests/size_test
#   curb_python_test(kill_test ARGS word…)                              runs kill_test.py BUILD word…; may be FOLDER/kill_test
#   curb_test(driver_cases COMMAND driver_cases)                        any other program
#
# Each is one test: one process for the executable, not one for each case. TIMEOUT is in seconds (default 300). A test
# that can run nothing here exits with 77; it prints `skipped: why` for itself or for a part.
# NOT_UNDER thread (or any) BECAUSE "why": not with that sanitizer. scripts/test lists all skipped tests at its end.
find_package(Catch2 REQUIRED)
find_package(Python3 COMPONENTS Interpreter REQUIRED)

set(CURB_LONG_FOLDERS between fault lifetime load memcheck neighbours)

# ctest starts these first, so that no long test runs alone at the end.
set(CURB_LONGEST allocation_faults ask_test conformance control_test driver_contract_with_naps exit_test fork_test gate_test
  helper_test kill_test light_test memcheck_test moves_test nap_faults_test nap_test naps_test neighbours_test ps_test
  shared_memory_test sharing_test shim_test suspend_test surroundings_preload_test surroundings_test system_call_faults
  threads_test trace_shim_test)

# curb_left_out("what" "why"): scripts/test prints these at its end, grouped by reason.
function(curb_left_out what why)
  string(MD5 reason "${why}")
  set_property(GLOBAL APPEND PROPERTY CURB_LEFT_OUT_WHY "${why}")
  set_property(GLOBAL APPEND PROPERTY CURB_LEFT_OUT_${reason} "${what}")
endfunction()

function(curb_write_left_out file)
  get_property(reasons GLOBAL PROPERTY CURB_LEFT_OUT_WHY)
  list(REMOVE_DUPLICATES reasons)
  set(text "")
  foreach(why IN LISTS reasons)
    string(MD5 reason "${why}")
    get_property(names GLOBAL PROPERTY CURB_LEFT_OUT_${reason})
    list(REMOVE_DUPLICATES names)
    list(JOIN names ", " names)
    string(APPEND text "${names}: ${why}\n")
  endforeach()
  file(WRITE ${file} "${text}")
endfunction()

# Excludes Catch2 cases that cannot run under a sanitizer, by tag.
set(curb_cases "")
macro(curb_leave_cases_out tag why)
  string(APPEND curb_cases "~[${tag}]")
  curb_left_out("cases with [${tag}]" "${why}")
endmacro()
if(CURB_SANITIZE)
  set(curb_cases "~[.]") # an exclusion alone would select hidden cases too, which are children of other cases
  curb_leave_cases_out(bare "sanitizers' runtimes have threads, descriptors and handlers of their own")
  curb_leave_cases_out(own-runtime "sanitizers' runtimes have an allocator and a dlopen of their own, and must come first")
endif()
if(CURB_SANITIZE STREQUAL "thread")
  curb_leave_cases_out(foreign "programs that are not ours do not start with ThreadSanitizer's runtime")
  curb_leave_cases_out(kernel "ThreadSanitizer's runtime has handlers of its own in the kernel, and calls the program's later")
  curb_leave_cases_out(foreign-close "they close a descriptor that another thread is using, as programs do: a race by intention")
  curb_leave_cases_out(own-variables "they write over their variables while the driver reads them, as programs do: a race by intention")
  curb_leave_cases_out(own-descriptors "ThreadSanitizer does not know of those of curb's threads (shim/CMakeLists.txt)")
  curb_leave_cases_out(patience "ten times slower, and beside other tests, they wait longer than they may")
elseif(CURB_SANITIZE)
  curb_leave_cases_out(fork-child "LeakSanitizer misses there what only the parent's threads pointed to")
endif()

if(NOT TARGET curb_catch)
  set(_curb_catch_dir ${CMAKE_CURRENT_LIST_DIR}/../tests/unit/helpers)
  if(Catch2_VERSION VERSION_LESS 3)
    add_library(curb_catch STATIC ${_curb_catch_dir}/catch_main.cpp) # compiled once: v2's main is slow to compile
    set_target_properties(curb_catch PROPERTIES UNITY_BUILD OFF)
    target_link_libraries(curb_catch PUBLIC Catch2::Catch2)
    target_include_directories(curb_catch PUBLIC ${_curb_catch_dir})
    target_compile_options(curb_catch PRIVATE -O0 -g0 -w) # Catch2's own code, which is slow to compile
    if(CURB_SANITIZE)
      target_compile_options(curb_catch PRIVATE -fno-sanitize=all)
    endif()
  else()
    add_library(curb_catch INTERFACE)
    target_link_libraries(curb_catch INTERFACE Catch2::Catch2WithMain)
    target_include_directories(curb_catch INTERFACE ${_curb_catch_dir})
  endif()
endif()

function(curb_catch_test name)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBS" ${ARGN})
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_SOURCES)
    message(FATAL_ERROR "curb_catch_test(${name} SOURCES file… [LIBS target…]): what is '${arg_UNPARSED_ARGUMENTS}'?")
  endif()
  add_executable(${name} ${arg_SOURCES})
  list(LENGTH arg_SOURCES sources)
  if(sources EQUAL 1) # not as a unity file: ccache then shares it between builds
    set_target_properties(${name} PROPERTIES UNITY_BUILD OFF)
  endif()
  target_link_libraries(${name} PRIVATE ${arg_LIBS} curb_catch)
  # Catch2's header would cost two seconds for each source. All tests share the first test's.
  get_property(first GLOBAL PROPERTY CURB_CATCH_FIRST)
  if(first)
    target_precompile_headers(${name} REUSE_FROM ${first})
  else()
    target_precompile_headers(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/unit/helpers/catch.hpp)
    set_property(GLOBAL PROPERTY CURB_CATCH_FIRST ${name})
  endif()
  # At -O0 tests compile in half the time. The libraries under test are optimised as usual.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O0>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # The first is for ccache. The others: GCC 12 warns of std::string code that it inlines from a precompiled header.
    target_compile_options(${name} PRIVATE
      -fpch-preprocess -Wno-array-bounds -Wno-stringop-overflow)
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  curb_test(${name} COMMAND ${name} ${curb_cases})
  # scripts/cover builds and runs the tests that need the pure layers only.
  set(others ${arg_LIBS})
  list(FILTER others EXCLUDE REGEX "^(curb_policy|curb_config|curb_control|Threads::Threads|nlohmann_json::nlohmann_json)$")
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  if(folder MATCHES "^(unit|fuzz)$" AND arg_LIBS MATCHES "curb_" AND NOT others)
    set_property(TEST ${name} APPEND PROPERTY LABELS layers)
    set_property(GLOBAL APPEND PROPERTY CURB_LAYER_TESTS ${name})
  endif()
endfunction()

function(curb_test name)
  cmake_parse_arguments(arg "" "TIMEOUT;NOT_UNDER;BECAUSE" "COMMAND;ENVIRONMENT" ${ARGN})
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_COMMAND OR (arg_NOT_UNDER AND NOT arg_BECAUSE))
    message(FATAL_ERROR "curb_test(${name}) is not as the head of cmake/CurbTest.cmake has it: ${ARGN}")
  endif()
  get_filename_component(label ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  if(CURB_SANITIZE AND arg_NOT_UNDER AND (arg_NOT_UNDER STREQUAL "any" OR CURB_SANITIZE MATCHES "${arg_NOT_UNDER}"))
    curb_left_out("${name}" "${arg_BECAUSE}")
    return()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(CMAKE_CROSSCOMPILING) # an emulated machine is ten times as slow (scripts/test-aarch64)
    math(EXPR arg_TIMEOUT "10 * ${arg_TIMEOUT}")
  endif()
  add_test(NAME ${name} COMMAND ${arg_COMMAND})
  if(name IN_LIST CURB_LONGEST)
    set_tests_properties(${name} PROPERTIES COST 100)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} SKIP_RETURN_CODE 77 LABELS ${label}
    ENVIRONMENT "${arg_ENVIRONMENT}")
  if(label IN_LIST CURB_LONG_FOLDERS)
    set_property(TEST ${name} APPEND PROPERTY LABELS long)
  endif()
endfunction()

function(curb_python_test script)
  cmake_parse_arguments(arg "" "" "ARGS" ${ARGN})
  get_filename_component(name ${script} NAME)
  curb_test(${name} COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/${script}.py ${PROJECT_BINARY_DIR} ${arg_ARGS}
    ${arg_UNPARSED_ARGUMENTS})
endfunction()
