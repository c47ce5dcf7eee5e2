# Compiles for aarch64 with Debian's g++-aarch64-linux-gnu and the ncurses in CURB_SYSROOT (packaging/sysroot arm64).
#
# The compiler looks in /usr/include too, whose headers are the same for every architecture.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES CURB_SYSROOT)
set(triplet aarch64-linux-gnu)
if(NOT EXISTS "${CURB_SYSROOT}/usr/lib/${triplet}/libncursesw.a")
  message(FATAL_ERROR "packaging/aarch64.cmake needs -DCURB_SYSROOT=FOLDER, which packaging/sysroot arm64 makes")
endif()
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER ${triplet}-gcc)
set(CMAKE_CXX_COMPILER ${triplet}-g++)
# The build runs curb once, for its manual pages. Not CMAKE_CROSSCOMPILING_EMULATOR: ctest would start each test in it.
set(CURB_EMULATOR qemu-aarch64-static -L /usr/${triplet})
set(CMAKE_LIBRARY_PATH ${CURB_SYSROOT}/usr/lib/${triplet})
# The headers alone of these are used, which any architecture's package has.
cmake_host_system_information(RESULT host QUERY OS_PLATFORM)
set(fmt_DIR /usr/lib/${host}-linux-gnu/cmake/fmt)
set(spdlog_DIR /usr/lib/${host}-linux-gnu/cmake/spdlog)
