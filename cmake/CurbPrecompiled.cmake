# The standard library's headers, precompiled for a target of many sources: a quarter of clang's time for each. With GCC it
# is less, and GCC 12 warns of what it inlines out of a precompiled header as if it were the source's own.
function(curb_precompile)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    return()
  endif()
  foreach(target IN LISTS ARGV)
    target_precompile_headers(${target} PRIVATE
      <algorithm> <array> <atomic> <charconv> <chrono> <cstdint> <cstdlib> <cstring> <functional> <map> <memory>
      <mutex> <optional> <string> <string_view> <thread> <unordered_map> <utility> <variant> <vector>)
  endforeach()
endfunction()

# Takes the precompiled header of `from`, which is compiled by the same options.
function(curb_precompile_as from target)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    target_precompile_headers(${target} REUSE_FROM ${from})
  endif()
endfunction()
