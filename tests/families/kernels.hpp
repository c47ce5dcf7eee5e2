// Kernels as PTX, which the driver compiles for its GPU. The comment lines have the module's sizes, for the simulated
// driver, which reads no code.
#pragma once

#include <cstddef>
#include <string>

namespace families {

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

// `frame` uses so many bytes of local memory a thread, at indices that no compiler can know.
inline std::string frame_ptx(std::size_t bytes) {
    const std::string size = std::to_string(bytes);
    return "// curb-sim-module code=2MiB\n// kernel frame local=" + size + R"(
.version 6.4
.target sm_75
.address_size 64
.visible .global .b32 sink;
.visible .entry frame() {
    .local .align 16 .b8 bytes[)" +
           size + R"(];
    .reg .b64 %p<4>;
    .reg .b32 %v<4>;
    mov.u32 %v1, %clock;
    and.b32 %v1, %v1, 127;
    mov.u32 %v2, %clock;
    and.b32 %v2, %v2, 127;
    mov.u64 %p1, bytes;
    mul.wide.u32 %p2, %v1, 4;
    add.u64 %p2, %p1, %p2;
    st.local.u32 [%p2], %v1;
    mul.wide.u32 %p3, %v2, 4;
    add.u64 %p3, %p1, %p3;
    ld.local.u32 %v3, [%p3];
    st.global.u32 [sink], %v3;
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

}  // namespace families
