#include "image.hpp"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace curb::sim {

namespace {

// Reads up to the first byte that is not text, since an image comes without its size.
std::string text_of(const char *image) {
    const char *end = image;
    while ((*end >= ' ' && *end <= '~') || *end == '\n' || *end == '\r' || *end == '\t') ++end;
    return {image, end};
}

// Returns the words of a line without a leading comment mark.
std::vector<std::string> words_of(const std::string &line) {
    std::istringstream stream(line);
    std::vector<std::string> words;
    for (std::string word; stream >> word;)
        if (!words.empty() || word != "//") words.push_back(word);
    return words;
}

// "local=8192" -> 8192 if the key is "local".
bool read_field(const std::string &word, const std::string &key, uint64_t *value) {
    if (word.rfind(key + "=", 0) != 0) return false;
    *value = parse_size(word.substr(key.size() + 1));
    return true;
}

Image parse(const std::string &text) {
    std::istringstream lines(text);
    std::string line;
    std::vector<std::string> words;
    while (words.empty() || words[0] != "curb-sim-module") {
        if (!std::getline(lines, line)) return {};
        words = words_of(line);
    }
    Image image{.data = 0, .any_kernel = false};
    for (const std::string &word : words)
        read_field(word, "code", &image.code) || read_field(word, "global", &image.global) ||
            read_field(word, "once", &image.once);
    while (std::getline(lines, line) && (words = words_of(line)).size() >= 2 && words[0] == "kernel") {
        KernelNeeds &kernel = image.kernels.emplace_back(KernelNeeds{.name = words[1]});
        for (const std::string &word : words) {
            read_field(word, "local", &kernel.local) || read_field(word, "us", &kernel.us) ||
                read_field(word, "blocks", &kernel.blocks);
            kernel.mallocs = kernel.mallocs || word == "malloc";
        }
    }
    return image;
}

}  // namespace

const KernelNeeds *Image::find(const std::string &name) const {
    static const KernelNeeds &nothing = *new KernelNeeds;
    if (any_kernel) return &nothing;
    const auto found =
        std::find_if(kernels.begin(), kernels.end(), [&](const KernelNeeds &kernel) { return kernel.name == name; });
    return found == kernels.end() ? nullptr : &*found;
}

Image read_image(const void *image) { return parse(text_of(static_cast<const char *>(image))); }

bool read_image_file(const char *path, Image *image) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return false;
    const std::string content{std::istreambuf_iterator<char>(file), {}};
    *image = parse(text_of(content.c_str()));
    return true;
}

}  // namespace curb::sim
