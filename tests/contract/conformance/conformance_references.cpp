// The references of a program or a library that is linked with the driver: one to each row's export, bound by the
// loader. Weak, so that the program starts on a driver that lacks some. Declared without their types, since not every
// row has one in shim/abi and only the addresses matter.
#include <cstring>

#include "conformance_probe.hpp"

extern "C" {
#define DECLARE(symbol) __attribute__((weak)) void symbol();
#define CURB_WRAP(symbol, base, since, stream, rule) DECLARE(symbol)
#define CURB_PASS(symbol, base, since, stream, why) DECLARE(symbol)
#define CURB_CALL(symbol) DECLARE(symbol)
#define CURB_NVML(symbol, rule) DECLARE(symbol)
#define CURB_LIBC(symbol, why) DECLARE(symbol)
#include "driver/tables/entry_points.def"
}

namespace conformance {

void *linked_reference(const char *symbol) {
#define ANSWER(name) \
    if (std::strcmp(symbol, #name) == 0) return reinterpret_cast<void *>(&::name);
#define CURB_WRAP(symbol, base, since, stream, rule) ANSWER(symbol)
#define CURB_PASS(symbol, base, since, stream, why) ANSWER(symbol)
#define CURB_CALL(symbol) ANSWER(symbol)
#define CURB_NVML(symbol, rule) ANSWER(symbol)
#define CURB_LIBC(symbol, why) ANSWER(symbol)
#include "driver/tables/entry_points.def"
    return nullptr;
}

}  // namespace conformance
