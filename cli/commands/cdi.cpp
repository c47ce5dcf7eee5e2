// `curb cdi generate`: writes a specification of the Container Device Interface whose devices are caps.

#include <algorithm>
#include <filesystem>

#include "command/command.hpp"
#include "machine/libraries.hpp"
#include "policy/values/size.hpp"
#include "policy/values/words.hpp"
#include "terminal/format.hpp"
#include "terminal/json.hpp"
#include "terminal/replace_file.hpp"
#include "terminal/terminal.hpp"

namespace curb::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char *kKind = "curb.dev/cap";
// Paths in the container: those of an installation under /usr, so that libcurb.so finds the command for naps.
constexpr const char *kLibrary = "/usr/lib/curb/libcurb.so";
constexpr const char *kCommand = "/usr/bin/curb";

struct CdiOptions {
    std::vector<std::string> caps;
    std::string output = "/etc/cdi/curb.json", folder = "/etc/curb/cdi";
    bool json = false;

    void declare(Options &takes) {
        takes.options("-c,--cap", caps, "SIZE", "A device for containers with this cap: 8GiB, 75%; once for each");
        takes.option("--output", output, "FILE", "The specification [/etc/cdi/curb.json]");
        takes.option("--folder", folder, "PATH", "The files that containers see [/etc/curb/cdi]");
        takes.json(json);
    }
};

// CDI allows only letters, digits, '_', '-', '.' and ':' in the name of a device. A size may have blanks and '%'.
std::string device_of(std::string cap) {
    std::erase(cap, ' ');
    return cap.ends_with('%') ? cap.replace(cap.size() - 1, 1, "percent") : cap;
}

std::string mount_of(const std::string &outside, const char *inside) {
    return fmt::format(
        R"({{"hostPath": {}, "containerPath": {}, "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"]}})",
        json::text(outside), json::text(inside));
}

// Creates the directory and its parents with mode 0755, regardless of the umask.
std::error_code make_directory(const fs::path &path) {
    std::error_code error;
    if (fs::exists(path, error)) return {};
    if (error = make_directory(path.parent_path()); error) return error;
    fs::create_directory(path, error);
    if (!error) fs::permissions(path, fs::perms(0755), error);
    return error;
}

// Writes a file and creates its directories. Returns the error; nullopt on success.
std::optional<std::string> written(const fs::path &file, const std::string &text) {
    if (const auto error = make_directory(file.parent_path()))
        return "cannot make " + file.parent_path().native() + ": " + error.message();
    return replace_file(file.native(), text);
}

// Writes the ceiling of a device, unless it is there. Returns the error; nullopt on success.
std::optional<std::string> written_ceiling(const fs::path &file, const std::string &cap) {
    std::error_code error;
    // Keep the file: an administrator may have edited it before running this command again after an upgrade.
    if (fs::exists(file, error)) return std::nullopt;
    return written(
        file, fmt::format("{{\n  \"version\": 1,\n  \"gpu\": {{ \"*\": {{ \"cap\": {} }} }}\n}}\n", json::text(cap)));
}

// Returns the device of a cap whose ceiling is in `folder`.
std::string device_json(const std::string &cap, const fs::path &folder) {
    // Mount the folder, not the file: an edit replaces the file, and a running container would keep the old one.
    return fmt::format("    {{\"name\": {}, \"containerEdits\": {{\"mounts\": [\n      {}\n    ]}}}}",
                       json::text(device_of(cap)), mount_of(folder.native(), "/etc/curb"));
}

int generate(const CdiOptions &options) {
    if (options.caps.empty()) return failed("which caps? curb cdi generate --cap 4GiB --cap 8GiB makes two devices");
    for (const std::string &cap : options.caps)
        if (const auto size = policy::parse_size(cap); !size) return failed("--cap: " + size.error());
    const auto library = find_library();
    if (!library) return failed(library.error());
    const fs::path folder = fs::absolute(options.folder), output = fs::absolute(options.output);

    if (const auto why = written(folder / "ld.so.preload", std::string(kLibrary) + "\n")) return failed(*why);
    std::vector<std::string> devices, names;
    for (const std::string &cap : options.caps) {
        const std::string name = fmt::format("{}={}", kKind, device_of(cap));
        // Runtimes refuse a specification that has a device twice.
        if (std::find(names.begin(), names.end(), name) != names.end()) continue;
        const fs::path of_device = folder / device_of(cap);
        if (const auto why = written_ceiling(of_device / "policy.json", cap)) return failed(*why);
        devices.push_back(device_json(cap, of_device));
        names.push_back(name);
    }
    const std::vector<std::string> mounts = {mount_of(library->native(), kLibrary),
                                             mount_of(own_file().native(), kCommand),
                                             mount_of((folder / "ld.so.preload").native(), "/etc/ld.so.preload")};
    const std::string text = fmt::format(
        "{{\n  \"cdiVersion\": \"0.5.0\",\n  \"kind\": {},\n  \"containerEdits\": {{\"mounts\": [\n    {}\n  ]}},\n"
        "  \"devices\": [\n{}\n  ]\n}}\n",
        json::text(kKind), policy::joined(mounts, ",\n    "), policy::joined(devices, ",\n"));
    if (const auto why = written(output, text)) return failed(*why);
    if (options.json)
        print_line(json::object({{"file", json::text(output.native())},
                                 {"folder", json::text(folder.native())},
                                 {"devices", json::list(names, json::text)}}));
    else
        print_text(fmt::format("wrote {}\npodman run --device {} IMAGE runs under the cap in {}\n", output.native(),
                               names.front(), (folder / device_of(options.caps.front()) / "policy.json").native()));
    return 0;
}

}  // namespace

extern const Command kCdi{
    .name = "cdi",
    .line = "Caps as devices for containers",
    .help = R"(
Examples:
  curb cdi generate --cap 8GiB)",
};

extern const Command kCdiGenerate{
    .group = "cdi",
    .name = "generate",
    .line = "Write a CDI specification whose devices are caps",
    .help = R"(
Containers get a device by name: podman run --device curb.dev/cap=8GiB (75%: curb.dev/cap=75percent). It mounts
libcurb.so and the command, an /etc/ld.so.preload that names the library, and a folder with the cap as the container's
ceiling, /etc/curb/policy.json. So every program of the container is under curb, also by podman exec and behind env -i,
and its user cannot exceed the cap. Of two devices the last holds.

The ceiling of each device is a policy in the folder, PATH/8GiB/policy.json. It may be edited while containers run, and
is kept if it is there already. All of it should belong to root.

In images with a glibc older than 2.34 no program starts. In those with musl programs run without curb; curb doctor PID
names them.

Exit status 0: written, 125: not; stderr says why.

Examples:
  curb cdi generate --cap 4GiB --cap 8GiB
  curb cdi generate --cap 25% --output ~/cdi/curb.json --folder ~/cdi/curb)",
    .takes = takes<CdiOptions, generate>,
};

}  // namespace curb::cli
