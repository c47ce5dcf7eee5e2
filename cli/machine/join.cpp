#include "join.hpp"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "ask.hpp"

namespace curb::cli {
namespace {

using policy::Bytes;

// "process 4711 has not answered" -> "has not answered"
std::string without_pid(int pid, const std::string &message) {
    const std::string head = control::process_text(pid) + " ";
    return message.starts_with(head) ? message.substr(head.size()) : message;
}

class Join {
  public:
    explicit Join(const ViewFacts &facts) : facts_(facts) {}

    View done() && {
        add_processes();
        if (facts_.gpus) {
            for (const GpuState &gpu : *facts_.gpus) add_gpu(gpu);
        } else {
            view_.nvml_fault = facts_.gpus.error();
        }
        for (std::size_t process = 0; process < view_.processes.size(); ++process) add_books(process);
        forget_what_instances_tell();
        sort();
        return std::move(view_);
    }

  private:
    void add_processes() {
        std::map<int, ViewProcess> all;
        for (const ProcessFacts &one : facts_.processes) {
            if (!one.lives) continue;
            ViewProcess &process = all[one.pid];
            process.user = one.user;
            process.name = one.name;
            process.command = one.command.empty() ? one.name : one.command;
            process.stopped = one.stopped;
            process.suspended = one.suspended;
            process.under_curb = one.preloaded;
            if (one.preloaded) process.trouble = "has no control socket: see curb doctor " + std::to_string(one.pid);
        }
        for (const control::Answer &answer : facts_.answers) {
            const auto found = all.find(answer.pid);
            if (found == all.end()) continue;  // it has ended since it was asked
            ViewProcess &process = found->second;
            process.under_curb = true;
            process.trouble.clear();
            if (auto status = report_in<control::Status>(answer.pid, answer.reply))
                process.status = std::move(status).value();
            else
                process.trouble = without_pid(answer.pid, status.error());
        }
        if (facts_.gpus)
            for (const GpuUser *user : users_of(*facts_.gpus))
                if (!is_known(user->pid)) all[user->pid].elsewhere = true;
        for (auto &[pid, process] : all) {
            process.pid = pid;
            indices_[pid] = view_.processes.size();
            view_.processes.push_back(std::move(process));
        }
    }
    [[nodiscard]] bool is_known(int pid) const {
        return std::any_of(facts_.processes.begin(), facts_.processes.end(),
                           [=](const ProcessFacts &one) { return one.pid == pid; });
    }

    void add_gpu(const GpuState &gpu, const std::string &parent = {}) {
        ViewGpu out;
        out.index = gpu.index;
        out.uuid = gpu.uuid;
        out.parent = parent;
        out.name = gpu.name;
        out.total = gpu.total;
        out.used = gpu.used;
        out.free = gpu.free;
        out.mig = gpu.mig;
        for (const GpuUser &user : gpu.users)
            if (const auto found = indices_.find(user.pid); found != indices_.end())
                out.uses.push_back({found->second, std::nullopt, user.held});
        view_.gpus.push_back(std::move(out));
        for (const GpuState &instance : gpu.instances) add_gpu(instance, gpu.uuid);
    }

    // Adds the process's own figures beside NVML's.
    void add_books(std::size_t process) {
        const auto &status = view_.processes[process].status;
        if (!status) return;
        for (std::size_t i = 0; i < status->gpus.size(); ++i) {
            const control::GpuStatus &books = status->gpus[i];
            const auto gpu = std::find_if(view_.gpus.begin(), view_.gpus.end(),
                                          [&](const ViewGpu &one) { return one.uuid == books.uuid; });
            if (gpu != view_.gpus.end()) {
                const auto use = std::find_if(gpu->uses.begin(), gpu->uses.end(),
                                              [=](const ViewUse &one) { return one.process == process; });
                if (use != gpu->uses.end()) {
                    use->books = i;
                    continue;
                }
            }
            // A process also lists devices that it sees and holds nothing of.
            if (books.held == 0 && books.contexts == 0 && control::refused(books) == 0) continue;
            (gpu == view_.gpus.end() ? add_device(books) : *gpu).uses.push_back({process, i, std::nullopt});
        }
    }
    // Adds a device that NVML does not list, behind the GPU that it is part of.
    ViewGpu &add_device(const control::GpuStatus &books) {
        ViewGpu out;
        out.uuid = books.uuid;
        out.parent = books.parent;
        out.total = books.total;
        out.mig = !books.parent.empty();
        auto at = std::find_if(view_.gpus.begin(), view_.gpus.end(),
                               [&](const ViewGpu &one) { return out.mig && one.uuid == books.parent; });
        if (at != view_.gpus.end()) {
            at->mig = true;
            for (++at; at != view_.gpus.end() && at->parent == out.parent;) ++at;
        }
        return *view_.gpus.insert(at, std::move(out));
    }

    // NVML lists the processes of instances on the whole GPU too, without figures. Removes them there if their instance
    // is known.
    void forget_what_instances_tell() {
        for (ViewGpu &gpu : view_.gpus) {
            if (!gpu.mig || !gpu.parent.empty()) continue;
            std::erase_if(gpu.uses, [&](const ViewUse &use) {
                return std::any_of(view_.gpus.begin(), view_.gpus.end(), [&](const ViewGpu &instance) {
                    return instance.parent == gpu.uuid &&
                           std::any_of(instance.uses.begin(), instance.uses.end(),
                                       [&](const ViewUse &one) { return one.process == use.process; });
                });
            });
        }
    }

    [[nodiscard]] Bytes size_of(const ViewUse &use) const {
        const control::GpuStatus *books = books_of(view_, use);
        return std::max(books ? books->held : 0, use.nvml.value_or(0));
    }
    void sort() {
        for (ViewGpu &gpu : view_.gpus)
            std::sort(gpu.uses.begin(), gpu.uses.end(), [&](const ViewUse &a, const ViewUse &b) {
                const Bytes left = size_of(a), right = size_of(b);
                return left != right ? left > right : a.process < b.process;
            });
    }

    const ViewFacts &facts_;
    View view_;
    std::map<int, std::size_t> indices_;  // pid -> process
};

}  // namespace

View join(const ViewFacts &facts) { return Join(facts).done(); }

}  // namespace curb::cli
