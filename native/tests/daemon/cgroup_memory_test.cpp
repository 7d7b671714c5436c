// What control groups leave of the memory, from files as the kernel writes them and as nobody should.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "daemon/setup/cgroup_memory.h"
#include "daemon/setup/host_memory.h"

TEST_SUITE("daemon") {

using namespace luce::daemon;
namespace fs = std::filesystem;

namespace {

// A machine's files in a folder of their own.
class Machine {
public:
    Machine() {
        std::string path = (fs::temp_directory_path() / "luce-cgroup-XXXXXX").string();
        REQUIRE(::mkdtemp(path.data()) != nullptr);
        root_ = path;
    }
    ~Machine() { fs::remove_all(root_); }
    Machine(const Machine&) = delete;
    Machine& operator=(const Machine&) = delete;

    const Machine& with(const std::string& path, const std::string& text) const {
        fs::create_directories((root_ / path).parent_path());
        std::ofstream(root_ / path, std::ios::binary) << text;
        return *this;
    }

    std::optional<CgroupMemory> look() const { return cgroup_memory(root_); }
    HostMemory memory() const { return host_memory(root_); }

private:
    fs::path root_;
};

const std::string kGroups = "proc/self/cgroup";
const std::string kTwo = "sys/fs/cgroup/";
const std::string kOne = "sys/fs/cgroup/memory/";

bool ends_with(const std::string& text, const std::string& end) { return text.ends_with(end); }

}  // namespace

TEST_CASE("without control groups, or without a limit, nothing is said") {
    CHECK(!Machine().look());
    CHECK(!Machine().with(kGroups, "0::/\n").look());
    CHECK(!Machine().with(kGroups, "0::/a\n").with(kTwo + "a/memory.max", "max\n").look());
    CHECK(!Machine().with(kGroups, "4:cpu:/a\n").with(kOne + "a/memory.limit_in_bytes", "1000\n").look());
}

TEST_CASE("of a group and those around it the one that leaves least counts") {
    Machine machine;
    machine.with(kGroups, "0::/outer/inner\n");
    machine.with(kTwo + "outer/inner/memory.max", "5000\n").with(kTwo + "outer/inner/memory.current", "1000\n");
    REQUIRE(machine.look());
    CHECK(machine.look()->available == 4000);
    CHECK(machine.look()->limit == 5000);
    machine.with(kTwo + "outer/memory.max", "9000\n").with(kTwo + "outer/memory.current", "8500\n");
    CHECK(machine.look()->available == 500);
    CHECK(ends_with(machine.look()->file, "/outer/memory.max"));
    machine.with(kTwo + "outer/inner/memory.high", "1200\n");
    CHECK(machine.look()->available == 200);
    CHECK(ends_with(machine.look()->file, "/outer/inner/memory.high"));
    // Another group's limit is none of ours.
    machine.with(kTwo + "outer/other/memory.max", "1\n");
    CHECK(machine.look()->available == 200);
}

TEST_CASE("files that are only kept in memory make way") {
    Machine machine;
    machine.with(kGroups, "0::/a\n").with(kTwo + "a/memory.max", "5000\n").with(kTwo + "a/memory.current", "4000\n");
    machine.with(kTwo + "a/memory.stat", "anon 1000\ninactive_file 2000\nactive_file 500\nfile 2600\n");
    CHECK(machine.look()->available == 3500);
    machine.with(kTwo + "a/memory.stat", "inactive_file 2000\nactive_file 18446744073709551615\n");
    CHECK(machine.look()->available == 5000);
}

TEST_CASE("nothing is left where more is in use than the limit, and zero is a limit") {
    Machine machine;
    machine.with(kGroups, "0::/a\n").with(kTwo + "a/memory.max", "5000\n").with(kTwo + "a/memory.current", "6000\n");
    CHECK(machine.look()->available == 0);
    machine.with(kTwo + "a/memory.max", "0\n");
    CHECK(machine.look()->limit == 0);
}

TEST_CASE("version 1, beside version 2 as well") {
    Machine machine;
    machine.with(kGroups, "9:name=systemd:/\n4:cpu,memory:/a\n0::/\n");
    machine.with(kOne + "a/memory.limit_in_bytes", "7000\n").with(kOne + "a/memory.usage_in_bytes", "3000\n");
    machine.with(kOne + "a/memory.stat", "inactive_file 1\ntotal_inactive_file 600\ntotal_active_file 400\n");
    REQUIRE(machine.look());
    CHECK(machine.look()->available == 5000);
    machine.with(kOne + "a/memory.soft_limit_in_bytes", "9223372036854771712\n");
    CHECK(ends_with(machine.look()->file, "/memory.limit_in_bytes"));
    machine.with(kOne + "a/memory.soft_limit_in_bytes", "2500\n");
    CHECK(machine.look()->available == 500);
    CHECK(ends_with(machine.look()->file, "/a/memory.soft_limit_in_bytes"));
    machine.with(kTwo + "memory.max", "100\n");
    CHECK(machine.look()->available == 100);
}

TEST_CASE("a container sees its own group as the outermost one, under a path that is not there") {
    Machine machine;
    machine.with(kGroups, "4:memory:/docker/0123\n").with(kOne + "memory.limit_in_bytes", "4000\n");
    CHECK(machine.look()->available == 4000);
    machine.with(kGroups, "0::/../../else\n").with(kTwo + "memory.max", "3000\n").with("sys/else/memory.max", "1\n");
    REQUIRE(machine.look());
    CHECK(machine.look()->available == 3000);
}

TEST_CASE("what is no number is no limit") {
    for (const char* text : {"", "\n", "-1\n", "+5\n", " 5\n", "5 \n", "5x\n", "0x10\n", "1e3\n", "max5\n",
                             "99999999999999999999999\n", "5000\r\n"}) {
        CAPTURE(text);
        CHECK(!Machine().with(kGroups, "0::/a\n").with(kTwo + "a/memory.max", text).look());
    }
    // In use: as if nothing were.
    Machine machine;
    machine.with(kGroups, "0::/a\n").with(kTwo + "a/memory.max", "5000\n").with(kTwo + "a/memory.current", "many\n");
    CHECK(machine.look()->available == 5000);
    // A folder where a file should be.
    CHECK(!Machine().with(kGroups, "0::/a\n").with(kTwo + "a/memory.max/x", "1").look());
}

TEST_CASE("lists of groups that nobody should write do no harm") {
    const Machine machine;
    machine.with(kTwo + "memory.max", "5000\n");
    for (const std::string& text :
         {std::string("0\n"), std::string("0:\n:::\n"), std::string(1 << 20, ':'), std::string(1 << 20, '/'),
          std::string("\0\0::\0", 5), std::string(1 << 20, '\n')}) {
        machine.with(kGroups, text);
        CHECK(!machine.look());
    }
    machine.with(kGroups, "0::" + std::string(100000, 'a') + "\n");  // longer than any path may be
    CHECK(machine.look()->available == 5000);
    std::string deep = "0::";
    while (deep.size() < 60000) deep += "/a";
    machine.with(kGroups, deep);
    CHECK(machine.look()->available == 5000);
    machine.with(kGroups, "0::/a:b\n").with(kTwo + "a:b/memory.max", "70\n");
    CHECK(machine.look()->available == 70);
    std::mt19937 random(1);
    for (int i = 0; i < 2000; ++i) {
        std::string text = "0::/";
        for (int n = 0; n < 40; ++n) text += "0:/.\n,ax\xff"[random() % 9];
        machine.with(kGroups, text).with(kTwo + "memory.current", text.substr(4));
        CHECK(machine.look()->available <= 5000);
    }
}

TEST_CASE("the system's figure counts until a control group's is smaller") {
    Machine machine;
    machine.with("proc/meminfo", "MemTotal: 900 kB\nMemFree: 1 kB\nMemAvailable: 800 kB\n").with(kGroups, "0::/a\n");
    CHECK(machine.memory().available == 800 * 1024);
    CHECK(!machine.memory().limit);
    machine.with(kTwo + "a/memory.max", "900000\n");
    CHECK(machine.memory().available == 800 * 1024);
    CHECK(!machine.memory().limit);
    machine.with(kTwo + "a/memory.current", "500000\n");
    CHECK(machine.memory().available == 400000);
    REQUIRE(machine.memory().limit);
    CHECK(machine.memory().limit->limit == 900000);
}

}  // TEST_SUITE("daemon")
