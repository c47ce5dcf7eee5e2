// replace_file() replaces a file whole or not at all.
#include "terminal/replace_file.hpp"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "catch.hpp"
#include "in_child.hpp"
#include "temp_dir.hpp"

using curb::cli::replace_file;
namespace fs = std::filesystem;

namespace {

std::ptrdiff_t files_in(const fs::path &folder) {
    return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

}  // namespace

TEST_CASE("others may read the file whatever the umask, and no other file is left") {
    const TempDir dir;
    const fs::path path = dir / "curb.prom";
    const mode_t before = ::umask(0077);
    CHECK_FALSE(replace_file(path, "one\n"));
    CHECK_FALSE(replace_file(path, "two\n"));
    ::umask(before);
    struct stat found {};
    REQUIRE(::stat(path.c_str(), &found) == 0);
    CHECK((found.st_mode & 07777) == 0644);
    CHECK(dir.read("curb.prom") == "two\n");
    CHECK(files_in(dir.path()) == 1);
}

TEST_CASE("a reader finds one version or the other, never a part") {
    const TempDir dir;
    const fs::path path = dir / "curb.prom";
    const std::string texts[] = {std::string(1 << 20, 'a'), std::string(1 << 19, 'b')};
    REQUIRE_FALSE(replace_file(path, texts[0]));
    std::atomic<bool> end = false;
    std::atomic<int> parts = 0, reads = 0;
    std::thread reader([&] {
        while (!end) {
            const std::string text = dir.read("curb.prom");
            ++reads;
            if (text != texts[0] && text != texts[1]) ++parts;
        }
    });
    for (int i = 0; i < 50 || reads < 10; ++i) CHECK_FALSE(replace_file(path, texts[i % 2]));
    end = true;
    reader.join();
    CHECK(parts == 0);
}

TEST_CASE("when there is no room for it, the file stays as it was") {
    const TempDir dir;
    const fs::path path = dir / "curb.prom";
    REQUIRE_FALSE(replace_file(path, "before\n"));
    CHECK(in_child([&] {
              const rlimit little{4096, 4096};
              ::setrlimit(RLIMIT_FSIZE, &little);
              const auto wrong = replace_file(path, std::string(10'000, 'x'));
              return wrong && wrong->find("cannot write") == 0 ? 0 : 1;
          }) == 0);  // it returned an error, and SIGXFSZ did not end it
    CHECK(dir.read("curb.prom") == "before\n");
    CHECK(files_in(dir.path()) == 1);
}

TEST_CASE("a signal that ends curb leaves no temporary file") {
    const TempDir dir;
    const fs::path path = dir / "curb.prom";
    for (int i = 0; i < 50; ++i) {
        const Child writer([] { ::signal(SIGTERM, SIG_DFL); },  // the test's own runner has a handler
                           [&] {
                               for (;;) static_cast<void>(replace_file(path, std::string(1 << 16, 'x')));
                           });
        ::usleep(static_cast<useconds_t>(100 * i));  // somewhere in the middle
        ::kill(writer.pid(), SIGTERM);
        siginfo_t end{};
        REQUIRE(::waitid(P_PID, static_cast<id_t>(writer.pid()), &end, WEXITED | WNOWAIT) == 0);
        CHECK(files_in(dir.path()) <= 1);
    }
}

TEST_CASE("a symbolic link stays, and what it points to is replaced") {
    const TempDir dir;
    fs::create_directory(dir / "real");
    REQUIRE_FALSE(replace_file(dir / "real" / "curb.prom", "one\n"));
    fs::create_symlink(dir / "real" / "curb.prom", dir / "link.prom");
    CHECK_FALSE(replace_file(dir / "link.prom", "two\n"));
    CHECK(fs::is_symlink(dir / "link.prom"));
    CHECK(dir.read("real/curb.prom") == "two\n");
}

TEST_CASE("the error for a file that cannot be replaced names it") {
    const TempDir dir;
    CHECK(replace_file("/dev/null", "x").value() == "/dev/null is there, and is no file");
    CHECK(replace_file(dir.path(), "x").value() == dir.path().string() + " is there, and is no file");
    const std::string path = (dir / "missing" / "curb.prom").string();
    CHECK(replace_file(path, "x").value() == "cannot make a file beside " + path + ": No such file or directory");
}
