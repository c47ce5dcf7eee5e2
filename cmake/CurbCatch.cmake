# Tests in Catch2, version 2 (Debian 12, Ubuntu 22.04) or 3, with one main for all of them.
#
#   curb_catch_test(size_test SOURCES size_test.cpp LIBS curb_policy)
#
# builds build/tests/size_test and registers it as ONE ctest test: a process for each executable, not for each case.
# Sources say `#include "catch.hpp"` (tests/unit/catch.hpp), which is the same under both versions.
find_package(Catch2 REQUIRED)

if(NOT TARGET curb_catch)
  set(_curb_catch_dir ${CMAKE_CURRENT_LIST_DIR}/../tests/unit)
  if(Catch2_VERSION VERSION_LESS 3)
    add_library(curb_catch STATIC ${_curb_catch_dir}/catch_main.cpp) # v2's main is slow to compile: once
    target_link_libraries(curb_catch PUBLIC Catch2::Catch2)
    target_include_directories(curb_catch PUBLIC ${_curb_catch_dir})
  else()
    add_library(curb_catch INTERFACE)
    target_link_libraries(curb_catch INTERFACE Catch2::Catch2WithMain)
    target_include_directories(curb_catch INTERFACE ${_curb_catch_dir})
  endif()
endif()

function(curb_catch_test name)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBS;ARGS" ${ARGN})
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_SOURCES)
    message(FATAL_ERROR "curb_catch_test(${name} SOURCES file… [LIBS target…] [ARGS argument…]): what is '${arg_UNPARSED_ARGUMENTS}'?")
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LIBS} curb_catch)
  # Catch2's header takes two seconds of each source otherwise. The first test's is everybody's.
  get_property(first GLOBAL PROPERTY CURB_CATCH_FIRST)
  if(first)
    target_precompile_headers(${name} REUSE_FROM ${first})
  else()
    target_precompile_headers(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/unit/catch.hpp)
    set_property(GLOBAL PROPERTY CURB_CATCH_FIRST ${name})
  endif()
  # What is tested is optimised; the tests need not be, and compile in half the time.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # The first for ccache; the others because GCC 12 takes what it inlines of std::string out of a precompiled header for
    # the test's own, and warns of it.
    target_compile_options(${name} PRIVATE
      -fpch-preprocess -Wno-array-bounds -Wno-stringop-overflow)
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name} ${arg_ARGS})
  get_filename_component(labels ${CMAKE_CURRENT_SOURCE_DIR} NAME) # unit, contract, process
  # Those that need nothing but the pure layers, which scripts/cover builds and runs.
  set(others ${arg_LIBS})
  list(FILTER others EXCLUDE REGEX "^(curb_policy|curb_config|curb_control|Threads::Threads|nlohmann_json::nlohmann_json)$")
  if(labels MATCHES "^(unit|fuzz)$" AND arg_LIBS MATCHES "curb_" AND NOT others)
    list(APPEND labels layers)
    set_property(GLOBAL APPEND PROPERTY CURB_LAYER_TESTS ${name})
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT 300 LABELS "${labels}")
endfunction()
