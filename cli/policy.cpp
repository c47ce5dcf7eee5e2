// `curb policy …`: what a policy file says, without running anything.
#include <cstdio>
#include <iostream>

#include "commands.hpp"
#include "config/load.hpp"
#include "config/to_json.hpp"

namespace curb::cli {
namespace {

constexpr std::streamsize kLargest = 1 << 20;  // as config::read_file

config::Diagnostics check_standard_input() {
    const std::string name = "<stdin>";
    std::string text(kLargest + 1, '\0');
    std::cin.read(text.data(), kLargest + 1);
    text.resize(static_cast<std::size_t>(std::cin.gcount()));
    if (text.size() > kLargest) return {{name, 0, 0, {}, "it is larger than 1 MiB, which no policy is"}};
    const auto policy = config::parse(text, name);
    return policy ? config::Diagnostics() : policy.error();
}

config::Diagnostics check_file(const std::string &path) {
    const auto text = config::read_file(path);
    if (!text) return {text.error()};
    const auto policy = config::parse(*text, path);
    return policy ? config::Diagnostics() : policy.error();
}

}  // namespace

int policy_check(const CheckOptions &options) {
    const config::Diagnostics diagnostics = options.file == "-" ? check_standard_input() : check_file(options.file);
    if (options.json) {
        std::printf("%s\n", config::to_json(diagnostics).c_str());
    } else if (diagnostics.empty()) {
        std::printf("%s: valid\n", options.file.c_str());
    }
    if (!options.json) {
        for (const config::Diagnostic &diagnostic : diagnostics)
            std::fprintf(stderr, "%s\n", diagnostic.text().c_str());
    }
    return diagnostics.empty() ? 0 : 1;
}

}  // namespace curb::cli
