// Modules as PTX texts, which a real driver compiles for its GPU. The simulated driver reads no code: the comment lines
// declare what the module takes (tests/sim/sim.h).
#pragma once

namespace contract {

// How each text begins.
#define CONTRACT_PTX ".version 6.4\n.target sm_75\n.address_size 64\n"

// `small` does nothing.
inline constexpr const char *kSmallImage =
    "// curb-sim-module code=2MiB\n"
    "// kernel small\n" CONTRACT_PTX
    ".visible .entry small() {\n"
    "    ret;\n"
    "}\n";

// `frame` has 8 KiB of local memory for each thread, at indices that no compiler can know; `small` has none.
inline constexpr const char *kFrameImage =
    "// curb-sim-module code=2MiB\n"
    "// kernel small\n"
    "// kernel frame local=8192\n" CONTRACT_PTX
    ".visible .entry small() {\n"
    "    ret;\n"
    "}\n"
    ".visible .entry frame(.param .u64 at, .param .u32 into, .param .u32 from) {\n"
    "    .local .align 16 .b8 bytes[8192];\n"
    "    .reg .b64 %p<8>;\n"
    "    .reg .b32 %v<4>;\n"
    "    ld.param.u64 %p1, [at];\n"
    "    ld.param.u32 %v1, [into];\n"
    "    ld.param.u32 %v2, [from];\n"
    "    cvta.to.global.u64 %p2, %p1;\n"
    "    mov.u64 %p3, bytes;\n"
    "    mul.wide.u32 %p4, %v1, 4;\n"
    "    add.u64 %p5, %p3, %p4;\n"
    "    st.local.u32 [%p5], %v1;\n"
    "    mul.wide.u32 %p6, %v2, 4;\n"
    "    add.u64 %p7, %p3, %p6;\n"
    "    ld.local.u32 %v3, [%p7];\n"
    "    st.global.u32 [%p2], %v3;\n"
    "    ret;\n"
    "}\n";

// `alloc` allocates 64 bytes of the device's heap and frees them.
inline constexpr const char *kMallocImage =
    "// curb-sim-module code=2MiB\n"
    "// kernel alloc malloc\n" CONTRACT_PTX
    ".extern .func (.param .b64 block) malloc(.param .b64 size);\n"
    ".extern .func free(.param .b64 block);\n"
    ".visible .entry alloc() {\n"
    "    .reg .b64 %p<2>;\n"
    "    {\n"
    "    .param .b64 size;\n"
    "    st.param.b64 [size], 64;\n"
    "    .param .b64 block;\n"
    "    call.uni (block), malloc, (size);\n"
    "    ld.param.b64 %p1, [block];\n"
    "    }\n"
    "    {\n"
    "    .param .b64 block;\n"
    "    st.param.b64 [block], %p1;\n"
    "    call.uni free, (block);\n"
    "    }\n"
    "    ret;\n"
    "}\n";

// `large` is a variable of 64 MiB.
inline constexpr const char *kGlobalImage =
    "// curb-sim-module code=2MiB global=64MiB\n"
    "// kernel touch\n" CONTRACT_PTX
    ".visible .global .align 16 .b8 large[67108864];\n"
    ".visible .entry touch() {\n"
    "    .reg .b32 %v;\n"
    "    mov.u32 %v, 1;\n"
    "    st.global.u32 [large], %v;\n"
    "    ret;\n"
    "}\n";

// `large` is a variable of 1,600 MiB.
inline constexpr const char *kLargeImage =
    "// curb-sim-module global=1600MiB\n"
    "// kernel small\n" CONTRACT_PTX
    ".visible .global .align 16 .b8 large[1677721600];\n"
    ".visible .entry small() {\n"
    "    st.global.u32 [large], 1;\n"
    "    ret;\n"
    "}\n";

// `busy` runs for 30 ms, by the GPU's own clock, and has its block to itself.
inline constexpr const char *kBusyImage =
    "// curb-sim-module code=2MiB\n"
    "// kernel busy us=30000 blocks=1\n" CONTRACT_PTX
    ".visible .entry busy(.param .u64 block) {\n"
    "    .reg .b64 %t<3>;\n"
    "    .reg .pred %p1;\n"
    "    mov.u64 %t1, %globaltimer;\n"
    "    add.u64 %t1, %t1, 30000000;\n"
    "again:\n"
    "    mov.u64 %t2, %globaltimer;\n"
    "    setp.lt.u64 %p1, %t2, %t1;\n"
    "    @%p1 bra again;\n"
    "    ret;\n"
    "}\n";

}  // namespace contract
