// Tests of trace files: what stands in them, what becomes of a file that is there, and of a disk that takes no more.
#include <doctest/doctest.h>

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <nlohmann/json.hpp>

#include "base/trace_file.h"

TEST_SUITE("base") {

using namespace luce;
using nlohmann::json;

namespace {

struct TraceFolder {
    TraceFolder() {
        std::string pattern = (std::filesystem::temp_directory_path() / "luce-trace-XXXXXX").string();
        folder = mkdtemp(pattern.data());
    }
    ~TraceFolder() { std::filesystem::remove_all(folder); }

    std::string path() const { return folder / "trace.json"; }
    std::string text() const {
        std::ifstream file(path(), std::ios::binary);
        return {std::istreambuf_iterator<char>(file), {}};
    }
    void put(const std::string& content) const { std::ofstream(path(), std::ios::binary) << content; }

    std::filesystem::path folder;
};

// As long as it lives no file grows beyond that size: writing fails as on a full disk.
struct FullDisk {
    explicit FullDisk(std::size_t n_bytes) : before(std::signal(SIGXFSZ, SIG_IGN)) {
        REQUIRE(::getrlimit(RLIMIT_FSIZE, &limit) == 0);
        const rlimit small{n_bytes, limit.rlim_max};
        REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
    }
    ~FullDisk() {
        ::setrlimit(RLIMIT_FSIZE, &limit);
        std::signal(SIGXFSZ, before);
    }

    void (*before)(int);
    rlimit limit{};
};

void write_spans(const std::string& path, int n_spans, std::size_t limit_bytes = TraceFile::kLimitBytes) {
    auto opened = TraceFile::open(path, limit_bytes);
    REQUIRE(opened.ok());
    for (int i = 0; i < n_spans; ++i) opened.value()->add({Part::submit, 7, 10.0 + i, 10.5 + i, {1, 2, 64}});
}

std::size_t n_spans_in(const json& events) {
    std::size_t n = 0;
    for (const json& event : events) n += event.at("ph") == "X" ? 1 : 0;
    return n;
}

// As the documentation says: of a file that was cut off.
json closed_by_hand(const std::string& text) { return json::parse(text.substr(0, text.rfind(",\n")) + "]"); }

}  // namespace

TEST_CASE("A closed trace is an array of events: names, threads, microseconds and counts") {
    const TraceFolder temp;
    {
        auto opened = TraceFile::open(temp.path());
        REQUIRE(opened.ok());
        opened.value()->add({Part::submit, 7, 12.5, 12.5000015, {3, 40, 128}});
        opened.value()->add({Part::copies_out, 8, 1, 2, {4096}});
    }
    const json events = json::parse(temp.text());
    CHECK(events.front().at("name") == "luced_trace");
    CHECK(events.back().at("name") == "luced_trace_end");
    CHECK(events.back().at("args").at("left_out") == 0);
    const auto find = [&events](const char* phase, const char* name) {
        for (const json& event : events) {
            if (event.at("ph") == phase && event.at("name") == name) return event;
        }
        return json();
    };
    const json submit = find("X", "submit");
    CHECK(submit.at("ts") == 12500000);
    CHECK(submit.at("dur") == 1.5);
    CHECK(submit.at("pid") == ::getpid());
    CHECK(submit.at("tid") == 7);
    CHECK(submit.at("args") == json({{"lanes", 3}, {"tokens", 40}, {"cells", 128}}));
    CHECK(find("X", "copies_out").at("args") == json({{"bytes", 4096}}));
    CHECK(find("M", "thread_name").at("args").at("name") == "engine");
    CHECK(find("M", "process_name").at("args").at("name") == "luced");
}

TEST_CASE("A closed trace is replaced, one that was cut off is continued, anything else stays") {
    const TraceFolder temp;
    write_spans(temp.path(), 3);
    write_spans(temp.path(), 1);
    CHECK(n_spans_in(json::parse(temp.text())) == 1);

    // Killed in the middle of a line.
    const std::string whole = temp.text();
    temp.put(whole.substr(0, whole.find("luced_trace_end")));
    CHECK(n_spans_in(closed_by_hand(temp.text())) == 1);
    write_spans(temp.path(), 2);
    CHECK(n_spans_in(json::parse(temp.text())) == 3);

    for (const std::string foreign : {"my notes\n", "[", "{\"traceEvents\": []}"}) {
        temp.put(foreign);
        const auto refused = TraceFile::open(temp.path());
        REQUIRE_FALSE(refused.ok());
        CHECK(refused.error().code == ErrorCode::bad_args);
        CHECK(refused.error().text.find("no trace of luced") != std::string::npos);
        CHECK(temp.text() == foreign);
    }
    temp.put("");
    write_spans(temp.path(), 1);
    CHECK(n_spans_in(json::parse(temp.text())) == 1);
}

TEST_CASE("What cannot be written is said at the start") {
    const TraceFolder temp;
    const auto code_of = [](const std::string& path) { return TraceFile::open(path).error().code; };
    CHECK(code_of("/dev/full") == ErrorCode::io_error);
    CHECK(code_of(temp.path() + "/in/no/folder") == ErrorCode::io_error);
    CHECK(code_of(temp.folder) == ErrorCode::io_error);
    REQUIRE(::mkfifo(temp.path().c_str(), 0600) == 0);
    CHECK(code_of(temp.path()) == ErrorCode::bad_args);
}

TEST_CASE("Two do not write one file") {
    const TraceFolder temp;
    const auto first = TraceFile::open(temp.path());
    REQUIRE(first.ok());
    const auto second = TraceFile::open(temp.path());
    REQUIRE_FALSE(second.ok());
    CHECK(second.error().text.find("another process") != std::string::npos);
}

TEST_CASE("At its limit the file is closed and whole") {
    const TraceFolder temp;
    write_spans(temp.path(), 1000, 8192);
    const std::string text = temp.text();
    CHECK(text.size() <= 8192);
    CHECK(text.size() > 7900);
    const json events = json::parse(text);
    CHECK(n_spans_in(events) > 10);
    CHECK(events.back().at("name") == "luced_trace_end");
}

TEST_CASE("A disk that is full later cuts the file off behind a whole line") {
    const TraceFolder temp;
    {
        auto opened = TraceFile::open(temp.path());
        REQUIRE(opened.ok());
        const FullDisk full(5000);
        for (int i = 0; i < 1000; ++i) opened.value()->add({Part::wait, 7, 1, 2, {}});
        opened.value().reset();
    }
    const std::string text = temp.text();
    {
        const FullDisk full(text.size() + 10);
        const auto again = TraceFile::open(temp.path());  // an engine that is started again has to start
        REQUIRE(again.ok());
        CHECK(again.value() == nullptr);
    }
    CHECK(temp.text() == text);
    CHECK(text.ends_with(",\n"));
    CHECK(closed_by_hand(text).front().at("name") == "luced_trace");
    write_spans(temp.path(), 1);  // and there is room again
    CHECK(n_spans_in(json::parse(temp.text())) == 1);
}

}  // TEST_SUITE("base")
