// The kernels of paths.cpp as PTX, which the driver compiles for the GPU that is there. The comment lines of each say
// to the simulated driver, which reads no code, what the module takes.
#pragma once

#include <cstddef>
#include <string>

// `mark` stores a value through a pointer.
inline std::string mark_ptx() {
    return R"(// curb-sim-module code=2MiB
// kernel mark
.version 6.4
.target sm_75
.address_size 64
.visible .entry mark(.param .u64 at, .param .u32 value) {
    .reg .b64 %p<3>;
    .reg .b32 %v;
    ld.param.u64 %p1, [at];
    ld.param.u32 %v, [value];
    cvta.to.global.u64 %p2, %p1;
    st.global.u32 [%p2], %v;
    ret;
}
)";
}

// `frame` has so many bytes of local memory a thread, at indices that no compiler can know.
inline std::string frame_ptx(std::size_t bytes) {
    const std::string size = std::to_string(bytes);
    return "// curb-sim-module code=2MiB\n// kernel frame local=" + size + R"(
.version 6.4
.target sm_75
.address_size 64
.visible .entry frame(.param .u64 at, .param .u32 into, .param .u32 from) {
    .local .align 16 .b8 bytes[)" +
           size + R"(];
    .reg .b64 %p<8>;
    .reg .b32 %v<4>;
    ld.param.u64 %p1, [at];
    ld.param.u32 %v1, [into];
    ld.param.u32 %v2, [from];
    cvta.to.global.u64 %p2, %p1;
    mov.u64 %p3, bytes;
    mul.wide.u32 %p4, %v1, 4;
    add.u64 %p5, %p3, %p4;
    st.local.u32 [%p5], %v1;
    mul.wide.u32 %p6, %v2, 4;
    add.u64 %p7, %p3, %p6;
    ld.local.u32 %v3, [%p7];
    st.global.u32 [%p2], %v3;
    ret;
}
)";
}

// `large` is a global array of so many MiB: memory that comes with a module.
inline std::string global_ptx(std::size_t mib) {
    return "// curb-sim-module code=2MiB global=" + std::to_string(mib) + R"(MiB
// kernel touch
.version 6.4
.target sm_75
.address_size 64
.visible .global .align 16 .b8 large[)" +
           std::to_string(mib << 20) + R"(];
.visible .entry touch() {
    .reg .b32 %v;
    mov.u32 %v, 1;
    st.global.u32 [large], %v;
    ret;
}
)";
}
