# Writes the version script OUT of a simulated driver: it exports the functions of CUDA VERSION (11040),
# by the versions that SIM_CU gives in SOURCES, and those of NVML.
#   cmake -DVERSION=… -DSOURCES=…;… -DOUT=… -P exports.cmake
set(LATER "")
foreach(source IN LISTS SOURCES)
  file(STRINGS ${source} rows REGEX "^SIM_CU")
  foreach(row IN LISTS rows)
    if(row MATCHES "^SIM_CU[A-Z_]*.([0-9]+), ([A-Za-z0-9_]+)," AND CMAKE_MATCH_1 GREATER VERSION)
      string(APPEND LATER "${CMAKE_MATCH_2}; ${CMAKE_MATCH_2}_ptsz; ${CMAKE_MATCH_2}_ptds;\n        ")
    endif()
  endforeach()
endforeach()
if(VERSION LESS 11060) # NVML of drivers before 510
  string(APPEND LATER "nvmlDeviceGet*RunningProcesses_v3; nvmlDeviceGetMemoryInfo_v2; nvmlDeviceGetMemoryLimits_v1;\n        ")
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/exports.map.in ${OUT} @ONLY)
