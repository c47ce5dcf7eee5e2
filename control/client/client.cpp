#include "control/client.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <utility>

#include "asked.hpp"
#include "connect.hpp"
#include "control/proc.hpp"
#include "control/runtime_dir.hpp"
#include "elsewhere.hpp"

namespace curb::control {
namespace {

using std::chrono::milliseconds;

// Returns why no connection to a living process can be made. Reads its maps.
std::string not_found(int pid, bool refused) {
    const std::string process = process_text(pid);
    if (refused)
        return process +
               " no longer listens on its control socket: the program replaced itself, or closed descriptors "
               "that are not its own; restart it";
    const auto has_curb = has_mapped(pid, kLibrary);
    if (!has_curb) return process + " does not run under curb, or does not let others look whether it does";
    if (!*has_curb) return process + " does not run under curb; start it by: curb run -- COMMAND";
    return process +
           " has no control socket: it has not used CUDA yet, or could not make one (its log says so at level "
           "info)";
}

// True if a system call with this path may lead to one of the mount points: it is below one, or a link is on the way.
bool leads_below(const std::vector<std::string> &mounts, const std::string &path) {
    for (std::size_t end = 0; !mounts.empty() && end != std::string::npos;) {
        end = path.find('/', end + 1);
        const std::string part = path.substr(0, end);
        struct stat status {};
        if (is_below(mounts, part) || (::lstat(part.c_str(), &status) == 0 && S_ISLNK(status.st_mode))) return true;
    }
    return false;
}

// Finds the control socket of one process.
class Search {
  public:
    // `usual`: the folders of all processes.
    Search(int pid, std::shared_ptr<const std::vector<Folder>> usual) : pid_(pid), usual_(std::move(usual)) {}

    // Connects to the process. Skips others with the same pid: an earlier one, one of a container that shares the
    // folder, one of another user.
    Attempt attempt() {
        if (pid_ <= 0) return {.fault = std::to_string(pid_) + " is not the pid of a process"};
        errno = 0;
        now_ = name_of(pid_);
        if (!now_ && too_many_open(errno)) return {.error = errno};
        Attempt out;
        refused_ = false;
        if (look_in(*usual_, out) || look_in(own(), out) || look_inside(out) || out.error != 0) return out;
        if (!refused_) out.fault = why_not();
        out.unless_ended = !out.fault;
        if (!out.fault) out.fault = not_found(pid_, refused_);
        return out;
    }

  private:
    // Returns the folders of this process that are not the usual ones. Its XDG_RUNTIME_DIR may differ from ours: it was
    // started from another shell, or by cron.
    const std::vector<Folder> &own() {
        if (own_) return *own_;
        Places around = places();
        if (std::string xdg = runtime_directory_of(pid_); !xdg.empty()) around.xdg = std::move(xdg);
        const uid_t owner = owner_of(pid_).value_or(::geteuid());
        own_ = folders_of(around, owner == 0 ? ::geteuid() : owner);
        const auto fuse = ::geteuid() == 0 && owner != 0 ? fuse_of_users() : std::vector<std::string>();
        std::erase_if(*own_, [&](const Folder &one) {
            return leads_below(fuse, one.path) || std::find(usual_->begin(), usual_->end(), one) != usual_->end();
        });
        return *own_;
    }

    // Sets out.connection if this is a socket of the process, else out.error if another attempt may succeed. Returns
    // the error of connect_to().
    int connect(const Folder &folder, const std::string &name, Attempt &out) const {
        int error = 0;
        out.connection = connect_to(folder.path + "/" + name, folder.owner, error);
        if (error == EAGAIN || too_many_open(error)) out.error = error;
        if (!out.connection) return error;
        const auto who = peer(out.connection);
        if (!who || who->pid != pid_ || !speaks_for(*who, folder)) out.connection = {};
        return 0;
    }
    bool look_in(const std::vector<Folder> &folders, Attempt &out) {
        for (const Folder &folder : folders) {
            if (!belongs_in(folder, pid_)) continue;
            errno = 0;
            if (!open_folder(folder, false)) {
                if (too_many_open(errno)) out.error = errno;
                continue;
            }
            std::vector<std::string> names;
            if (now_)
                names.push_back(socket_name(*now_));
            else  // /proc hides it
                names = sockets_in(folder);
            for (const std::string &name : names) {
                if (parse_socket_name(name)->pid != pid_) continue;
                const int error = connect(folder, name, out);
                if (out.connection) return true;
                if (error == ECONNREFUSED) remove_socket(folder, name);
                refused_ |= error == ECONNREFUSED && now_;
            }
        }
        return false;
    }
    bool look_inside(Attempt &out) {
        for (const InnerSocket &one : sockets_inside(pid_)) {
            connect(one.folder, one.name, out);
            if (out.connection) return true;
        }
        return false;
    }

    // Returns why the process cannot be asked, whatever it does. nullopt if it lives and could.
    [[nodiscard]] std::optional<std::string> why_not() const {
        const std::string process = process_text(pid_);
        if (has_ended(pid_)) return "there is no " + process;
        const auto owner = owner_of(pid_);
        if (::geteuid() != 0 && owner && *owner != ::geteuid())
            return process + " belongs to user " + std::to_string(*owner) + ": ask as that user, or as root";
        if (const int inner = innermost_pid(pid_, proc_text(pid_, "status")); inner != pid_)
            return process + " runs in a container, where it is " + process_text(inner) +
                   ", and has no control socket that can be reached from here: ask for that one inside the container";
        return std::nullopt;
    }

    int pid_;
    std::shared_ptr<const std::vector<Folder>> usual_;
    std::optional<std::vector<Folder>> own_{};
    std::optional<ProcessName> now_{};  // the process that has the pid
    bool refused_ = false;              // it has a socket on which it no longer listens
};

}  // namespace

void ask_each(const std::vector<int> &pids, const std::vector<Question> &questions,
              const std::function<void(Answer)> &answered) {
    const auto usual = std::make_shared<const std::vector<Folder>>(folders(places(), ::geteuid()));
    const std::vector<Line> lines = lines_of(questions);
    std::vector<Asked> processes;
    processes.reserve(pids.size());
    for (const int pid : pids) {
        const auto search = std::make_shared<Search>(pid, usual);
        processes.emplace_back(
            pid, search->attempt(), [search] { return search->attempt(); }, lines);
    }
    ask_each(std::move(processes), answered);
}

Reply ask(int pid, const Request &request, milliseconds patience) {
    Reply out;
    ask_each({pid}, {{request, patience}}, [&](Answer one) { out = std::move(one.reply); });
    return out;
}

}  // namespace curb::control
