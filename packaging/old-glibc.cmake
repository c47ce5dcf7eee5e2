# Compiles with this machine's g++ against the glibc in CURB_SYSROOT (packaging/sysroot), for glibc 2.28 and newer, x86-64.
#
# That glibc is 2.31. scripts/package checks that programs ask for no function that is newer than 2.28.
#
# The compiler's own search order has this machine's headers and libraries in it wherever the sysroot is, so both are named
# in full here. Not CMAKE_SYSROOT: CMake would then take /usr/include for a folder like any other, and name it.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES CURB_SYSROOT)
if(NOT IS_DIRECTORY "${CURB_SYSROOT}/usr/include")
  message(FATAL_ERROR "packaging/old-glibc.cmake needs -DCURB_SYSROOT=FOLDER, which packaging/sysroot amd64 makes")
endif()
set(triplet x86_64-linux-gnu)
set(CMAKE_C_COMPILER ${triplet}-gcc)
set(CMAKE_CXX_COMPILER ${triplet}-g++)
set(CMAKE_LIBRARY_PATH ${CURB_SYSROOT}/usr/lib/${triplet}) # its ncurses

execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-libgcc-file-name OUTPUT_VARIABLE libgcc COMMAND_ERROR_IS_FATAL ANY)
get_filename_component(libgcc ${libgcc} DIRECTORY)
get_filename_component(version ${libgcc} NAME)
set(c ${libgcc}/include ${CURB_SYSROOT}/usr/include/${triplet} ${CURB_SYSROOT}/usr/include)
set(cxx /usr/include/c++/${version} /usr/include/${triplet}/c++/${version} ${c})
list(TRANSFORM c PREPEND "-isystem ")
list(TRANSFORM cxx PREPEND "-isystem ")
list(JOIN c " " c)
list(JOIN cxx " " cxx)
# The same bytes from whichever folder they are built in.
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
set(common "--sysroot=${CURB_SYSROOT} -nostdinc -ffile-prefix-map=${root}=.")
set(CMAKE_C_FLAGS_INIT "${common} ${c}")
# libstdc++'s headers are configured for this machine's glibc. Without the first, timed waits would call a function of glibc
# 2.30; without the last, they would refer to pthreads weakly, to be null in a process that has none.
set(before ${CURB_SYSROOT}/before_libstdcxx.hpp)
file(CONFIGURE OUTPUT ${before} CONTENT "#include <bits/c++config.h>\n#undef _GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT\n")
set(CMAKE_CXX_FLAGS_INIT "${common} ${cxx} -include ${before} -D_GLIBCXX_GTHREAD_USE_WEAK=0")
set(libraries "-B${CURB_SYSROOT}/usr/lib/${triplet} -L${CURB_SYSROOT}/usr/lib/${triplet} -L${CURB_SYSROOT}/lib/${triplet}")
foreach(kind EXE SHARED MODULE)
  set(CMAKE_${kind}_LINKER_FLAGS_INIT "${libraries}")
endforeach()

# The compiler's libstdc++.a asks glibc 2.32 or newer whether the process has one thread. The answer is that it may have more.
set(answer ${CURB_SYSROOT}/single_threaded.o)
if(NOT EXISTS ${answer})
  file(WRITE ${CURB_SYSROOT}/single_threaded.c "__attribute__((visibility(\"hidden\"))) char __libc_single_threaded = 0;\n")
  execute_process(COMMAND ${CMAKE_C_COMPILER} -fPIC -O2 -c ${CURB_SYSROOT}/single_threaded.c -o ${answer} COMMAND_ERROR_IS_FATAL ANY)
endif()
set(CMAKE_CXX_STANDARD_LIBRARIES_INIT ${answer})
# Its plugin is for the Slurm of this machine.
set(CURB_SLURM OFF)
