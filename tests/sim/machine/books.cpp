// curb-sim-books [--forget-highs] FILE: prints a simulated machine's books as JSON, for tests outside the process.
// "high" is the most that a process has held at once, managed memory included, since the last --forget-highs, which
// resets it after printing. The "high" of a device is the most of all living processes together; it is kept only under
// CURB_SIM_HIGH.
#include <cstdio>
#include <string_view>

#include "control/version_note.hpp"
#include "machine.hpp"

CURB_COMMAND_NOTE();

int main(int argc, char **argv) {
    using namespace curb::sim;
    const bool forget = argc == 3 && std::string_view(argv[1]) == "--forget-highs";
    if (argc != 2 && !forget) {
        std::fprintf(stderr, "usage: curb-sim-books [--forget-highs] STATE-FILE\n");
        return 2;
    }
    const std::unique_ptr<Machine> machine = Machine::open(argv[argc - 1], false);
    if (!machine) return 1;
    std::printf("{\"devices\":[");
    for (int device = 0; device < machine->device_count(); ++device) {
        const DeviceMemory memory = machine->memory(device);
        std::printf("%s{\"total\":%llu,\"used\":%llu,\"high\":%llu,\"overlaps\":%llu,\"processes\":[",
                    device ? "," : "", static_cast<unsigned long long>(memory.total),
                    static_cast<unsigned long long>(memory.used),
                    static_cast<unsigned long long>(machine->high(device)),
                    static_cast<unsigned long long>(machine->overlaps(device)));
        const char *comma = "";
        for (const ProcessHolding &process : machine->processes(device, forget)) {
            std::printf("%s{\"pid\":%d,\"bytes\":%llu,\"high\":%llu", comma, process.pid,
                        static_cast<unsigned long long>(process.holding.held()),
                        static_cast<unsigned long long>(process.high));
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
