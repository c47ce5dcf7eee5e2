# conformance: every entry point by every way to reach it, bare and under curb, on each of the simulated drivers. Runs on a
# real GPU too, from a copied build folder: build/tests/conformance, with its helpers beside it and build/lib/libcurb.so.
add_executable(conformance conformance/conformance.cpp conformance/conformance_allocate.cpp conformance/conformance_run.cpp)
target_compile_definitions(conformance PRIVATE CURB_SANITIZER_RUNTIME="${CURB_SANITIZER_RUNTIME}")

# The children: a program that is not linked with the driver, one that is, and a library that is; a program and a library
# that are linked with stubs of the driver instead.
add_library(conformance_probe OBJECT conformance/conformance_probe.cpp conformance/conformance_allocate.cpp)
add_library(conformance_references OBJECT conformance/conformance_references.cpp)
add_executable(conformance_child conformance/conformance_child.cpp)
add_executable(conformance_linked conformance/conformance_child.cpp)
target_compile_definitions(conformance_linked PRIVATE CONFORMANCE_LINKED)
add_library(conformance_early SHARED conformance/conformance_early.cpp)
add_library(conformance_stubs SHARED conformance/conformance_stubs.cpp)
target_link_options(conformance_stubs PRIVATE -Wl,-Bsymbolic)
add_executable(conformance_stubbed conformance/conformance_child.cpp)
target_compile_definitions(conformance_stubbed PRIVATE CONFORMANCE_LINKED)
add_library(conformance_user SHARED conformance/conformance_user.cpp)
foreach(target conformance_child conformance_linked conformance_early conformance_stubbed conformance_user)
  target_link_libraries(${target} PRIVATE conformance_probe ${CMAKE_DL_LIBS})
endforeach()
foreach(target conformance_linked conformance_early)
  target_link_libraries(${target} PRIVATE conformance_references -Wl,--no-as-needed curb_sim_cuda curb_sim_nvml)
  # No run path: the environment chooses the driver.
  set_target_properties(${target} PROPERTIES SKIP_BUILD_RPATH ON)
endforeach()
foreach(target conformance_stubbed conformance_user)
  target_link_libraries(${target} PRIVATE conformance_references -Wl,--no-as-needed conformance_stubs)
  set_target_properties(${target} PROPERTIES BUILD_RPATH "$ORIGIN")
endforeach()
add_library(conformance_next SHARED conformance/conformance_next.cpp)
target_link_libraries(conformance_next PRIVATE ${CMAKE_DL_LIBS})
target_link_libraries(conformance_stubs PRIVATE ${CMAKE_DL_LIBS})

target_link_libraries(conformance PRIVATE families_without_driver)
target_link_libraries(conformance_probe PUBLIC families_without_driver)
foreach(target conformance conformance_probe conformance_references conformance_child conformance_linked conformance_early
    conformance_stubs conformance_stubbed conformance_user)
  target_include_directories(${target} PRIVATE ${CURB_QUALIFIED}/shim/driver ${CURB_QUALIFIED}/shim/abi)
endforeach()
set_target_properties(conformance conformance_child conformance_linked conformance_early conformance_next conformance_stubs
  conformance_stubbed conformance_user PROPERTIES
  RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
configure_file(conformance/cudart13_requests.txt ${PROJECT_BINARY_DIR}/tests/cudart13_requests.txt COPYONLY)
add_dependencies(conformance conformance_child conformance_linked conformance_early conformance_next conformance_stubbed
  conformance_user
  curb_shim curb_sim_cuda curb_sim_nvml)

# The newest driver, and older ones, which lack functions.
foreach(driver "" 11.4 12.2 12.8)
  string(REGEX REPLACE "^(.+)$" "_\\1" suffix "${driver}")
  set(not_under "")
  if(driver AND CURB_NIGHTLY)
    set(not_under NOT_UNDER thread BECAUSE "older drivers differ by what is looked up in them, by one thread")
  elseif(driver)
    set(not_under NOT_UNDER any BECAUSE "older drivers differ by what is looked up in them, and the nightly run has them")
  elseif(NOT CURB_NIGHTLY)
    set(not_under NOT_UNDER thread BECAUSE "one thread looks functions up, and the nightly run has it")
  endif()
  if(driver) # and without NVML, as in some containers
    curb_test(conformance${suffix}_without_nvml
      COMMAND conformance --driver ${PROJECT_BINARY_DIR}/sim/${driver} --nvml no ${not_under})
  endif()
  curb_test(conformance${suffix} COMMAND conformance --driver ${PROJECT_BINARY_DIR}/sim/${driver} ${not_under}
    ENVIRONMENT LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}/sim)
endforeach()
if(CURB_SANITIZE STREQUAL "thread" AND NOT CURB_NIGHTLY)
  set_target_properties(conformance conformance_probe conformance_references conformance_child conformance_linked
    conformance_early conformance_next conformance_stubbed conformance_user PROPERTIES EXCLUDE_FROM_ALL ON)
endif()
