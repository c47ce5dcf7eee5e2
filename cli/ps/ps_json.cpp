#include "control/messages.hpp"
#include "json.hpp"
#include "ps_text.hpp"

namespace curb::cli {
namespace {

using json::list;
using json::object;
using json::text;
using json::text_or_null;

std::string use_json(const View &view, const ViewUse &use) {
    const control::GpuStatus *books = books_of(view, use);
    return object({{"pid", view.processes[use.process].pid},
                   {"nvml", use.nvml},
                   {"books", books ? control::json_of(*books) : "null"}});
}

std::string gpu_json(const View &view, const ViewGpu &gpu) {
    return object({{"index", gpu.index},
                   {"uuid", text(gpu.uuid)},
                   {"parent", text_or_null(gpu.parent)},
                   {"name", text_or_null(gpu.name)},
                   {"mig", gpu.mig},
                   {"total", gpu.total},
                   {"used", gpu.used},
                   {"free", gpu.free},
                   {"uses", list(gpu.uses, [&](const ViewUse &use) { return use_json(view, use); })}});
}

std::string process_json(const ViewProcess &process) {
    return object({{"pid", process.pid},
                   {"user", text_or_null(process.user)},
                   {"name", text_or_null(process.name)},
                   {"command", text_or_null(process.command)},
                   {"under_curb", process.under_curb},
                   {"stopped", process.stopped},
                   {"suspended", process.suspended},
                   {"elsewhere", process.elsewhere},
                   {"trouble", text_or_null(process.trouble)},
                   {"status", process.status ? control::json_of(*process.status) : "null"}});
}

}  // namespace

std::string ps_json(const View &view, const std::vector<PsError> &errors, control::UnixMs now) {
    const auto error = [](const PsError &one) { return object({{"pid", one.pid}, {"message", text(one.message)}}); };
    return object({{"time", now},
                   {"nvml_fault", text_or_null(view.nvml_fault)},
                   {"gpus", list(view.gpus, [&](const ViewGpu &gpu) { return gpu_json(view, gpu); })},
                   {"processes", list(view.processes, process_json)},
                   {"errors", list(errors, error)}});
}

}  // namespace curb::cli
