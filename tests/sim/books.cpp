// curb-sim-books FILE: a simulated machine's books as JSON, for tests that look from outside.
#include <cstdio>

#include "machine.hpp"

int main(int argc, char **argv) {
    using namespace curb::sim;
    if (argc != 2) {
        std::fprintf(stderr, "usage: curb-sim-books STATE-FILE\n");
        return 2;
    }
    const std::unique_ptr<Machine> machine = Machine::open(argv[1], false);
    if (!machine) return 1;
    std::printf("{\"devices\":[");
    for (int device = 0; device < machine->device_count(); ++device) {
        const DeviceMemory memory = machine->memory(device);
        std::printf("%s{\"total\":%llu,\"used\":%llu,\"overlaps\":%llu,\"processes\":[", device ? "," : "",
                    static_cast<unsigned long long>(memory.total), static_cast<unsigned long long>(memory.used),
                    static_cast<unsigned long long>(machine->overlaps(device)));
        const char *comma = "";
        for (const ProcessHolding &process : machine->processes(device)) {
            std::printf("%s{\"pid\":%d,\"bytes\":%llu", comma, process.pid,
                        static_cast<unsigned long long>(process.holding.held()));
            for (int use = 0; use < kUses; ++use)
                std::printf(",\"%s\":%llu", use_name(static_cast<Use>(use)),
                            static_cast<unsigned long long>(process.holding.bytes[use]));
            static constexpr const char *kStates[] = {"running", "locked", "checkpointed", "failed"};
            std::printf(",\"state\":\"%s\"}", kStates[static_cast<int>(process.state)]);
            comma = ",";
        }
        std::printf("]}");
    }
    std::printf("]}\n");
    return 0;
}
