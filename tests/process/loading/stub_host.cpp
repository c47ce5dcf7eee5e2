// A program without CUDA whose plugins use it: stub_host FOLDER (PLUGIN.VERB | loaded)... opens each plugin, asks it,
// and prints the answer. `loaded` prints whether libcuda is loaded.
#include <dlfcn.h>

#include <cstdio>
#include <string>

int main(int argc, char **argv) {
    for (int i = 2; i < argc; ++i) {
        const std::string word = argv[i];
        if (word == "loaded") {
            std::puts(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) ? "loaded" : "not loaded");
            continue;
        }
        const std::size_t dot = word.find('.');
        const std::string path = std::string(argv[1]) + "/libplugin_" + word.substr(0, dot) + ".so";
        void *plugin = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (!plugin) return std::fprintf(stderr, "%s\n", dlerror()), 2;
        const auto ask = reinterpret_cast<const char *(*)(const char *)>(dlsym(plugin, "plugin_answer"));
        std::puts(ask(word.substr(dot + 1).c_str()));
    }
    return 0;
}
