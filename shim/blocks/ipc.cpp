#include "blocks/ipc.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <new>
#include <string>

#include "accounting/allocations.hpp"
#include "accounting/shared.hpp"
#include "base/guarded.hpp"
#include "base/keep_errno.hpp"
#include "blocks/making.hpp"
#include "contexts/contexts.hpp"
#include "driver/as_one_call.hpp"
#include "host/log.hpp"
#include "host/process_state.hpp"
#include "policy/values/granule.hpp"

namespace curb::shim::blocks {
namespace {

using policy::LogLevel;
using std::chrono::milliseconds;

constexpr CUmemAllocationHandleType kFile = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

using Mark = std::array<char, 7>;
constexpr Mark kMark{'c', 'u', 'r', 'b', 'I', 'P', 'C'};
constexpr std::uint8_t kVersion = 1;
using Secret = std::array<std::uint64_t, 2>;

// The bytes of a handle of curb's.
struct Name {
    Mark mark = kMark;
    std::uint8_t version = kVersion;
    std::int32_t pid = 0;  // as the process itself sees it
    std::uint32_t user = 0;
    std::uint64_t began = 0;  // control::ProcessName::start
    std::uint64_t id = 0;     // of the block
    std::uint64_t start = 0, asked = 0;
    Secret secret{};

    [[nodiscard]] control::Exporter exporter() const noexcept { return {{pid, began}, user}; }
};
static_assert(sizeof(Name) == sizeof(CUipcMemHandle) && sizeof(Name) == sizeof(vmm::ImportName));

// What this process writes into its handles, and where it finds others.
struct Here {
    std::optional<Name> name;  // without a block
    const control::Places *places = nullptr;
};
template <class Act>
auto with_here(Act act) noexcept {
    return leaked<Guarded<Here>>().locked(act);
}

// Returns this process's name. nullopt if the kernel does not give it, or host memory is exhausted.
std::optional<Name> own_name() noexcept try {
    if (const auto known = with_here([](const Here &here) { return here.name; })) return known;
    Name made;
    const auto process = control::name_of(getpid());
    if (!process || syscall(SYS_getrandom, &made.secret, sizeof made.secret, 0) != sizeof made.secret)
        return std::nullopt;
    made.pid = process->pid;
    made.began = process->start;
    made.user = geteuid();
    return with_here([&](Here &here) {
        if (!here.name) here.name = made;
        return here.name;
    });
} catch (const std::bad_alloc &) {
    return std::nullopt;
}

std::string hexadecimal(const vmm::ImportName &name) {
    constexpr const char *kDigits = "0123456789abcdef";
    std::string out;
    for (const unsigned char byte : name) {
        out += kDigits[byte >> 4];
        out += kDigits[byte & 15];
    }
    return out;
}

// Returns the name in a request if it is one of this process's.
std::optional<Name> own_name_in(const std::string &text) noexcept {
    vmm::ImportName bytes{};
    if (text.size() != 2 * bytes.size()) return std::nullopt;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        const char *const at = text.data() + 2 * i;
        if (std::from_chars(at, at + 2, bytes[i], 16).ptr != at + 2) return std::nullopt;
    }
    const auto asked = std::bit_cast<Name>(bytes);
    const auto own = with_here([](const Here &here) { return here.name; });
    const bool is_own = own && asked.mark == own->mark && asked.version == own->version && asked.secret == own->secret;
    return is_own ? std::optional(asked) : std::nullopt;
}

CUresult refuse(CUresult result, const char *function, const std::string &why) {
    log::write(LogLevel::warning, std::string(function) + " is refused: " + why);
    return result;
}

// Asks the process that has made the memory for it.
control::MemoryAnswer ask_for(const Name &name, const vmm::ImportName &bytes) {
    const auto *places = with_here([](const Here &here) { return here.places; });
    if (!places) return {control::Failure{"this process has no control socket, by which memory is asked for"}};
    const auto is_late = [&] {
        log::write(LogLevel::warning, "cuIpcOpenMemHandle waits for process " + std::to_string(name.pid) +
                                          ", which shares the memory: it waits for room on its GPU, or is suspended "
                                          "or stopped");
    };
    return control::ask_for_memory(*places, name.exporter(), {hexadecimal(bytes), std::nullopt}, milliseconds::max(),
                                   is_late);
}

// Maps the memory behind a descriptor.
CUresult map(CUdeviceptr *address, const vmm::Import &import, int file, const MemoryOwner &user) {
    const Bytes asked = std::bit_cast<Name>(import.name).asked;
    return as_one_call<&Driver::cuIpcOpenMemHandle_v2>([&](const Driver &to) {
        Making making(to, policy::round_up(asked, policy::kGranule));
        const CUmemAccessDesc access = access_for(user.device->ordinal);
        const auto bring = [&](vmm::Handle *handle) {
            return to.cuMemImportFromShareableHandle(handle, reinterpret_cast<void *>(std::intptr_t{file}), kFile);
        };
        if (const CUresult made = making.run(bring, access); made != CUDA_SUCCESS) return made;
        CUmemAllocationProp properties{};
        const auto ask = [&] { return to.cuMemGetAllocationPropertiesFromHandle(&properties, making.handle); };
        Device *home = ask_twice(ask) == CUDA_SUCCESS ? devices::find(properties.location.id) : nullptr;
        const vmm::Block block{making.start, home ? home : user.device, user.context, asked, making.bytes};
        const CUdeviceptr at = vmm::add_import(block, making.handle, access, import);
        if (at == 0) return CUDA_ERROR_OUT_OF_MEMORY;
        making.is_kept = at == making.start;
        if (making.is_kept) grant_to_others(to, block, *user.device);  // devices may have no way to each other
        *address = at;
        return CUDA_SUCCESS;
    });
}

}  // namespace

void use(const control::Places &places) noexcept {
    with_here([&](Here &here) { here.places = &places; });
}

bool is_curbs(const CUipcMemHandle &handle) noexcept { return std::bit_cast<Name>(handle).mark == kMark; }

std::optional<CUresult> get_ipc_handle(CUipcMemHandle *handle, CUdeviceptr address) noexcept try {
    const KeepErrno keep_errno;
    const auto block = process::active() && vmm::any_blocks() ? vmm::block_around(address) : std::nullopt;
    if (!block) return std::nullopt;
    if (!handle || block->id == 0 || address - block->start >= block->asked) return CUDA_ERROR_INVALID_VALUE;
    constexpr const char *kFunction = "cuIpcGetMemHandle";
    if (!vmm::is_exportable(block->start))
        return refuse(CUDA_ERROR_INVALID_VALUE, kFunction,
                      "this device gives no descriptors of memory that a nap moves; \"suspend\": { \"light\": false } "
                      "in the policy gives the program memory that can be shared");
    auto name = own_name();
    if (!name) return refuse(CUDA_ERROR_INVALID_VALUE, kFunction, "the start of this process cannot be read in /proc");
    if (!allocations::offer(block->start)) return CUDA_ERROR_INVALID_VALUE;
    name->id = block->id;
    name->start = block->start;
    name->asked = block->asked;
    *handle = std::bit_cast<CUipcMemHandle>(*name);
    shared::exported(block->start, *handle);
    return CUDA_SUCCESS;
} catch (const std::bad_alloc &) {
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult open_ipc_handle(CUdeviceptr *address, const CUipcMemHandle &handle) try {
    const auto name = std::bit_cast<Name>(handle);
    vmm::Import import{std::bit_cast<vmm::ImportName>(handle)};
    const MemoryOwner user = memory_owner();
    if (!address) return CUDA_ERROR_INVALID_VALUE;
    // Nor does the driver open memory in the process that has it.
    const auto own = with_here([](const Here &here) { return here.name; });
    if (!user.device || (own && own->secret == name.secret)) return CUDA_ERROR_INVALID_CONTEXT;
    if (const CUdeviceptr known = vmm::open_again(import.name, user.context)) {
        *address = known;
        return CUDA_SUCCESS;
    }
    constexpr const char *kFunction = "cuIpcOpenMemHandle";
    control::MemoryAnswer answer;
    {
        const KeepErrno keep_errno;
        if (name.version != kVersion)
            return refuse(CUDA_ERROR_INVALID_HANDLE, kFunction,
                          "another version of curb made the handle: run both processes under one");
        answer = ask_for(name, import.name);
        if (const auto *failure = std::get_if<control::Failure>(&answer.reply))
            return refuse(CUDA_ERROR_INVALID_HANDLE, kFunction, failure->message);
        const auto *report = std::get_if<control::MemoryReport>(&answer.reply);
        if (!report || !answer.memory.ours())
            return refuse(CUDA_ERROR_INVALID_HANDLE, kFunction, "the answer came without a descriptor");
        import.opening = report->opening;
    }
    CUdeviceptr at = 0;
    const CUresult result = map(&at, import, answer.memory.number(), user);
    const KeepErrno keep_errno;  // not before: the thread must stay cancellable in the driver
    answer.memory = {};
    if (result == CUDA_SUCCESS) *address = at;
    if (result != CUDA_SUCCESS || !vmm::is_open_as(at, import.opening)) tell_closed({import});
    return result;
} catch (const std::bad_alloc &) {
    return CUDA_ERROR_OUT_OF_MEMORY;
}

std::optional<CUresult> close_ipc_handle(CUdeviceptr address) {
    const auto block = process::active() && vmm::any_blocks() ? vmm::block_around(address) : std::nullopt;
    if (!block || block->id != 0) return std::nullopt;
    if (block->start != address) return CUDA_ERROR_INVALID_VALUE;
    if (vmm::close_one(address)) return CUDA_SUCCESS;
    const auto waited = wait_for_work(block->context);
    if (waited && *waited != CUDA_SUCCESS) return *waited;
    std::vector<vmm::Import> closed;
    const CUresult result = as_one_call<&Driver::cuIpcCloseMemHandle>([&](const Driver &to) {
        vmm::BlockRemoval removal(address);
        if (!removal) return CUDA_SUCCESS;  // another thread has opened it again
        note_closed(closed, *removal.import());
        return end(to, removal);
    });
    if (result == CUDA_SUCCESS) tell_closed(closed);
    return result;
}

void note_closed(std::vector<vmm::Import> &list, const vmm::Import &import) noexcept try {
    list.push_back(import);
} catch (const std::bad_alloc &) {
    // Then the block stays in its GPU until this process ends.
}

void tell_closed(const std::vector<vmm::Import> &list) noexcept try {
    const KeepErrno keep_errno;
    const auto *places = with_here([](const Here &here) { return here.places; });
    constexpr milliseconds kPatience{100};
    int silent = 0;  // a process that has ended, or does not answer
    for (const vmm::Import &one : list) {
        const control::Exporter exporter = std::bit_cast<Name>(one.name).exporter();
        if (!places || exporter.process.pid == silent) continue;
        const auto answer =
            control::ask_for_memory(*places, exporter, {hexadecimal(one.name), one.opening}, kPatience, [] {});
        if (std::holds_alternative<control::Failure>(answer.reply)) silent = exporter.process.pid;
    }
} catch (const std::bad_alloc &) {
    // As above.
}

control::MemoryAnswer lend(const control::MemoryRequest &asked, const control::ProcessName &by) {
    control::MemoryAnswer out{control::Failure{"the memory that the handle names has been freed"}};
    const auto name = own_name_in(asked.handle);
    const auto block = name ? vmm::block_around(name->start) : std::nullopt;
    if (!block) return out;
    const contexts::Pin pin(block->context);
    const contexts::Current context(pin ? block->context : nullptr);
    as_one_call<&Driver::cuMemExportToShareableHandle>([&](const Driver &to) {
        const auto lent = vmm::lend(name->start, name->id, by);
        if (!lent) return CUDA_ERROR_INVALID_HANDLE;
        int fd = -1;
        const auto give = [&] { return to.cuMemExportToShareableHandle(&fd, lent->handle, kFile, 0); };
        const CUresult result = ask_twice(give);
        if (result == CUDA_SUCCESS) {
            fcntl(fd, F_SETFD, FD_CLOEXEC);
            out = {control::MemoryReport{lent->opening}, control::Descriptor(control::above_standard(fd))};
        } else {
            vmm::returned(name->start, lent->opening);
            out.reply = control::Failure{"the driver of the process that has the memory gives no descriptor of it"};
        }
        return result;
    });
    return out;
}

control::Reply take_back(const control::MemoryRequest &asked) {
    if (const auto name = own_name_in(asked.handle)) vmm::returned(name->start, *asked.closed);
    return control::MemoryReport{};
}

}  // namespace curb::shim::blocks
