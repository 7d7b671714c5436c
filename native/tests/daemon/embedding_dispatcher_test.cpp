// Tests of the commands of a daemon that gives vectors, over a model that is arithmetic and can fail.
#include <doctest/doctest.h>

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "daemon/commands/embedding_dispatcher.h"

TEST_SUITE("daemon") {

using namespace luce;

namespace {

// A text's vector: how many texts were computed with it, and the sum of its tokens.
class SumEmbedder final : public engine::Embedder {
public:
    engine::EmbedderLimits limits() const override { return {.n_text = 8, .n_batch = 8, .n_texts = 4, .n_vocab = 100}; }

    Result<std::vector<engine::Vector>> embed(std::span<const Tokens> texts) override {
        if (fails) return Error{*fails, "as it was told"};
        std::vector<engine::Vector> vectors;
        for (const Tokens& text : texts) {
            float sum = 0;
            for (const Token token : text) sum += static_cast<float>(token);
            vectors.push_back(sum == 0 ? engine::Vector() : engine::Vector{static_cast<float>(texts.size()), sum});
        }
        return vectors;
    }

    std::optional<ErrorCode> fails;
};

struct EmbeddingDaemon {
    explicit EmbeddingDaemon(std::size_t n_queue = 8, wire::Dialect dialect = wire::Dialect::multiplexed)
        : output(make_pipe(), std::nullopt, dialect),
          dispatcher(model, n_queue, output, [] { return daemon::EmbeddingDispatcher::StatusFields{{"ctx", "8"}}; }) {}

    int make_pipe() {
        std::array<int, 2> fds{};
        REQUIRE(::pipe2(fds.data(), O_CLOEXEC | O_NONBLOCK) == 0);
        reader = UniqueFd(fds[0]);
        writer = UniqueFd(fds[1]);
        return fds[1];
    }

    void tell(const std::string& line) { dispatcher.on_line({line, false}); }

    std::string heard() {
        output.flush();
        std::string text(1 << 16, '\0');
        const ssize_t n = ::read(reader.get(), text.data(), text.size());
        text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
        return text;
    }

    UniqueFd reader;
    UniqueFd writer;
    SumEmbedder model;
    daemon::Output output;
    daemon::EmbeddingDispatcher dispatcher;
};

}  // namespace

TEST_CASE("embedding daemon: texts that came together are computed together") {
    EmbeddingDaemon daemon;
    daemon.tell("embed id=1 prompt=1");
    daemon.tell("embed id=2 prompt=2,1");
    CHECK_FALSE(daemon.dispatcher.is_idle());
    CHECK(daemon.dispatcher.step());
    CHECK(daemon.heard() == "[embedding] id=1 N=1 values=AAAAQAAAgD8=\n[embedding] id=2 N=2 values=AAAAQAAAQEA=\n");
    CHECK(daemon.dispatcher.is_idle());
    CHECK(daemon.dispatcher.step());  // nothing waits
    CHECK(daemon.heard().empty());
}

TEST_CASE("embedding daemon: each command has one reply") {
    EmbeddingDaemon daemon(1);
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"ping x", "pong x\n"},
        {"embed id=3 prompt=1,100", "err token_out_of_range id=3 "},
        {"embed id=3 prompt=1,2,3,4,5,6,7,8,9", "err prompt_too_long id=3 "},
        {"embed id=3 prompt=@/nowhere", "err no_such_file id=3 "},
        {"embed id=3", "err bad_args id=3 "},
        {"gen id=4 n=1 prompt=1", "err unsupported id=4 "},
        {"/tmp/prompt.bin 4", "err unsupported this"},
        {"SNAPSHOT 0", "err unsupported this"},
        {"park id=5", "err unsupported id=5 "},
        {"cancel id=6", "err unknown_id id=6 "},
        {"frobnicate id=7", "err unknown_command id=7 "},
        {"status id=8", "[status] id=8 queued=0 texts=0 tokens_in=0 calls=0 backlog_bytes=0 ctx=8\n"},
    };
    for (const auto& [line, reply] : cases) {
        CAPTURE(line);
        daemon.tell(line);
        const std::string heard = daemon.heard();
        CHECK(heard.starts_with(reply));
        CHECK(std::count(heard.begin(), heard.end(), '\n') == 1);
    }
    daemon.tell("embed id=1 prompt=1");
    daemon.tell("embed id=2 prompt=1");
    CHECK(daemon.heard().starts_with("err queue_full id=2 "));
    daemon.dispatcher.on_line({"", true});
    CHECK(daemon.heard().starts_with("err line_too_long "));
}

TEST_CASE("embedding daemon: a cancelled text is not computed") {
    EmbeddingDaemon daemon;
    daemon.tell("embed id=1 prompt=1");
    daemon.tell("embed id=2 prompt=2");
    daemon.tell("cancel id=1");
    CHECK(daemon.heard() == "[cancel] id=1\nerr cancelled id=1 the request was cancelled\n");
    CHECK(daemon.dispatcher.step());
    CHECK(daemon.heard() == "[embedding] id=2 N=1 values=AACAPwAAAEA=\n");
}

TEST_CASE("embedding daemon: a text without a vector is nobody else's trouble") {
    EmbeddingDaemon daemon;
    for (const char* line : {"embed id=1 prompt=0", "embed id=2 prompt=2"}) daemon.tell(line);
    CHECK(daemon.dispatcher.step());
    const std::string heard = daemon.heard();
    CHECK(heard.starts_with("err internal id=1 "));
    CHECK(heard.ends_with("\n[embedding] id=2 N=1 values=AAAAQAAAAEA=\n"));
}

TEST_CASE("embedding daemon: quit answers what waits") {
    EmbeddingDaemon daemon;
    daemon.tell("embed id=1 prompt=1");
    daemon.tell("quit");
    CHECK(daemon.heard() == "err cancelled id=1 the daemon was told to stop\nok\n");
    CHECK(daemon.dispatcher.has_quit());
    CHECK_FALSE(daemon.dispatcher.wants_lines());
}

TEST_CASE("embedding daemon: want of memory costs a call, any other failure the daemon") {
    EmbeddingDaemon daemon;
    daemon.model.fails = ErrorCode::out_of_memory;
    daemon.tell("embed id=1 prompt=1");
    CHECK(daemon.dispatcher.step());
    CHECK(daemon.heard() == "err out_of_memory id=1 as it was told\n");
    daemon.model.fails = ErrorCode::internal;
    for (const char* line : {"embed id=2 prompt=1,2,3,4,5", "embed id=3 prompt=1,2,3,4,5"}) daemon.tell(line);
    CHECK_FALSE(daemon.dispatcher.step());
    CHECK(daemon.heard() == "err internal id=2 as it was told\nerr internal id=3 as it was told\n");
}

TEST_CASE("embedding daemon: without a reader nothing is computed") {
    EmbeddingDaemon daemon;
    daemon.tell("embed id=1 prompt=1");
    daemon.output.replies().close();
    daemon.dispatcher.on_reader_gone();
    CHECK(daemon.dispatcher.is_idle());
}

}  // TEST_SUITE("daemon")
