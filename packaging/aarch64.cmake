# Compiles for aarch64 with Debian's g++-aarch64-linux-gnu.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
# Headers alone are used of these, which any architecture's package has.
cmake_host_system_information(RESULT host QUERY OS_PLATFORM)
set(spdlog_DIR /usr/lib/${host}-linux-gnu/cmake/spdlog)
set(fmt_DIR /usr/lib/${host}-linux-gnu/cmake/fmt)
