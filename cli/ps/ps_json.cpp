#include "control/messages.hpp"
#include "json.hpp"
#include "ps_text.hpp"

namespace curb::cli {
namespace {

using json::flag;
using json::list;
using json::number_or_null;
using json::object;
using json::text;
using json::text_or_null;
using std::to_string;

std::string use_json(const View &view, const ViewUse &use) {
    const control::GpuStatus *books = books_of(view, use);
    return object({{"pid", to_string(view.processes[use.process].pid)},
                   {"nvml", number_or_null(use.nvml)},
                   {"books", books ? control::json_of(*books) : "null"}});
}

std::string gpu_json(const View &view, const ViewGpu &gpu) {
    return object({{"index", number_or_null(gpu.index)},
                   {"uuid", text(gpu.uuid)},
                   {"parent", text_or_null(gpu.parent)},
                   {"name", text_or_null(gpu.name)},
                   {"mig", flag(gpu.mig)},
                   {"total", to_string(gpu.total)},
                   {"used", number_or_null(gpu.used)},
                   {"free", number_or_null(gpu.free)},
                   {"uses", list(gpu.uses, [&](const ViewUse &use) { return use_json(view, use); })}});
}

std::string process_json(const ViewProcess &process) {
    return object({{"pid", to_string(process.pid)},
                   {"user", text_or_null(process.user)},
                   {"name", text_or_null(process.name)},
                   {"command", text_or_null(process.command)},
                   {"under_curb", flag(process.under_curb)},
                   {"stopped", flag(process.stopped)},
                   {"suspended", flag(process.suspended)},
                   {"elsewhere", flag(process.elsewhere)},
                   {"trouble", text_or_null(process.trouble)},
                   {"status", process.status ? control::json_of(*process.status) : "null"}});
}

}  // namespace

std::string ps_json(const View &view, const std::vector<PsError> &errors, control::UnixMs now) {
    const auto error = [](const PsError &one) {
        return object({{"pid", to_string(one.pid)}, {"message", text(one.message)}});
    };
    return object({{"time", to_string(now)},
                   {"nvml_fault", text_or_null(view.nvml_fault)},
                   {"gpus", list(view.gpus, [&](const ViewGpu &gpu) { return gpu_json(view, gpu); })},
                   {"processes", list(view.processes, process_json)},
                   {"errors", list(errors, error)}});
}

}  // namespace curb::cli
