#include "guard_facts.hpp"

#include "control/client.hpp"

namespace curb::cli {
namespace {

constexpr auto kGuardPatience = std::chrono::seconds(2);

}  // namespace

policy::Result<std::vector<GpuState>, std::string> Machine::gpus() const {
    if (!nvml) return nvml.error();
    return nvml->gpus();
}

Machine open_machine() {
    auto driver = open_driver();
    return {std::move(driver), Nvml::open()};
}

DriverFacts facts_of(const Machine &machine, int pid) {
    DriverFacts facts;
    if (!machine.driver) {
        facts.fault = machine.driver.error();
        return facts;
    }
    const Driver &driver = *machine.driver;
    facts.cuda = driver.version;
    facts.version = machine.nvml ? machine.nvml->driver_version() : "";
    facts.has_checkpoint = driver.has_checkpoint;
    if (!driver.has_checkpoint) return facts;
    CUprocessState state{};
    const CUresult error = driver.cuCheckpointProcessGetState(pid, &state);
    if (error == CUDA_SUCCESS)
        facts.state = state;
    else
        facts.state_error = driver.text(error);
    return facts;
}

policy::Result<control::Status, std::string> ask_books(const Target &target) {
    if (!target.under_curb) return std::string("it is not under curb");
    const control::Reply reply = control::ask(target.process.pid, control::StatusRequest{}, kGuardPatience);
    if (const auto *status = std::get_if<control::Status>(&reply)) return *status;
    const auto *failure = std::get_if<control::Failure>(&reply);
    return failure ? failure->message : std::string("its answer is not understood");
}

Books books_of(const Target &target) {
    const auto status = ask_books(target);
    if (!status) return {std::nullopt, status.error()};
    policy::Bytes managed = 0;
    for (const control::GpuStatus &gpu : status->gpus)
        managed += gpu.kinds[static_cast<std::size_t>(policy::Kind::managed)];
    return {managed, ""};
}

int companion_of(const Target &target, const std::vector<GpuState> &gpus) {
    if (target.executable.empty() || look_at(target.parent).executable != target.executable) return 0;
    for (const GpuState &gpu : gpus)
        for (const GpuUser &user : gpu.users)
            if (user.pid != target.process.pid && look_at(user.pid).parent == target.parent) return user.pid;
    return 0;
}

}  // namespace curb::cli
