// Tests of daemon/ without a model: options, and the writer on real pipes and sockets.
#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <vector>

#include "base/unique_fd.h"
#include "daemon/loop/fd_writer.h"
#include "daemon/setup/options.h"

TEST_SUITE("daemon") {

using namespace luce;
using namespace luce::daemon;

namespace {

Result<Options> parse(std::vector<std::string> words) {
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    return parse_options(arguments);
}

struct Channel {
    UniqueFd reader;
    UniqueFd writer;
};

Channel make_pipe() {
    std::array<int, 2> fds{};
    REQUIRE(::pipe2(fds.data(), O_CLOEXEC) == 0);
    return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

Channel make_socket() {
    std::array<int, 2> fds{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds.data()) == 0);
    return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

std::string read_some(int fd) {
    std::string bytes(1 << 16, '\0');
    const ssize_t n = ::read(fd, bytes.data(), bytes.size());
    bytes.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    return bytes;
}

}  // namespace

TEST_CASE("options: values in both spellings, zero is a value") {
    const Result<Options> options = parse({"--model", "m.gguf", "--ctx=100", "--pool", "200", "--mux", "--queue", "0",
                                           "--gpu-layers", "0", "--seed", "0", "--flash-attn", "off"});
    REQUIRE(options);
    CHECK(options.value().model == "m.gguf");
    CHECK(options.value().n_ctx == 100);
    CHECK(options.value().n_pool == 200);
    CHECK(options.value().multiplexed);
    CHECK(options.value().n_queue == 0);
    CHECK(options.value().n_gpu_layers == 0);
    CHECK(options.value().seed == 0);
    CHECK(options.value().flash_attention == FlashAttentionChoice::off);
}

TEST_CASE("options: a daemon that gives vectors takes what it can use") {
    const Result<Options> options =
        parse({"--model", "m.gguf", "--embedding", "rank", "--ctx", "100", "--threads", "2"});
    REQUIRE(options);
    CHECK(options.value().embedding == EmbeddingPooling::rank);
    CHECK(parse({"--model", "m.gguf"}).value().embedding == EmbeddingPooling::none);
    CHECK_FALSE(parse({"--model", "m.gguf", "--embedding", "none"}));
    for (const char* needless : {"--lanes", "--pool", "--slots", "--draft", "--kv-offload", "--seed"}) {
        const auto refused = parse({"--model", "m.gguf", "--embedding", "auto", needless, "64"});
        REQUIRE_FALSE(refused);
        CHECK(refused.error().text.find(needless) != std::string::npos);
    }
}

TEST_CASE("options: what is wrong is named") {
    const auto text_of = [](std::vector<std::string> words) { return parse(std::move(words)).error().text; };
    CHECK(text_of({"--modell", "x"}).find("--modell") != std::string::npos);
    CHECK(text_of({"--model"}).find("needs a value") != std::string::npos);
    CHECK(text_of({}).find("--model") != std::string::npos);
    CHECK(text_of({"stray"}).find("stray") != std::string::npos);
    CHECK(text_of({"--model", "m", "--mux=1"}).find("takes no value") != std::string::npos);
    for (const char* value : {"", "x", "1x", "-1", "0", "1.5", "99999999999999999999", " 1"}) {
        CHECK_FALSE(parse({"--model", "m", "--ctx", value}));
    }
    CHECK(text_of({"--model", "m", "--ctx", "100", "--pool", "99"}).find("--pool") != std::string::npos);
    CHECK(text_of({"--model", "m", "--lanes", "8", "--ubatch", "4"}).find("--ubatch") != std::string::npos);
    CHECK(text_of({"--model", "m", "--log-level", "loud"}).find("debug") != std::string::npos);
    CHECK(text_of({"--model", "m", "--stream-fd", "1"}).find("--stream-fd") != std::string::npos);
}

TEST_CASE("options: speculation") {
    const Result<Options> plain = parse({"--model", "m.gguf"});
    REQUIRE(plain);
    CHECK_FALSE(plain.value().draft);
    CHECK_FALSE(plain.value().mtp);
    CHECK_FALSE(plain.value().n_draft_most);
    CHECK(plain.value().draft_gate);
    CHECK_FALSE(plain.value().no_warmup);
    CHECK(plain.value().draft_ngram);
    CHECK(plain.value().draft_answers);
    CHECK_FALSE(plain.value().draft_tree);
    CHECK_FALSE(plain.value().spec_memory_bytes);

    const Result<Options> all = parse({"--model",
                                       "m",
                                       "--draft",
                                       "d.gguf",
                                       "--mtp",
                                       "--draft-max",
                                       "64",
                                       "--draft-adaptive=off",
                                       "--no-warmup",
                                       "--draft-accept",
                                       "match",
                                       "--draft-ngram",
                                       "off",
                                       "--draft-answers",
                                       "off",
                                       "--draft-tree",
                                       "12",
                                       "--draft-state-memory",
                                       "2G",
                                       "--draft-cache-type-k",
                                       "f16",
                                       "--draft-cache-type-v",
                                       "q8_0",
                                       "--draft-gpu-layers",
                                       "0",
                                       "--draft-threads",
                                       "3"});
    REQUIRE(all);
    CHECK(all.value().draft == "d.gguf");
    CHECK(all.value().mtp);
    CHECK(all.value().n_draft_most == 64);
    CHECK_FALSE(all.value().draft_gate);
    CHECK(all.value().no_warmup);
    CHECK_FALSE(all.value().draft_ngram);
    CHECK_FALSE(all.value().draft_answers);
    CHECK(all.value().draft_tree == 12);
    CHECK(all.value().spec_memory_bytes == std::uint64_t{2} << 30);
    CHECK(all.value().draft_cache_type_k == "f16");
    CHECK(all.value().draft_cache_type_v == "q8_0");
    CHECK(all.value().n_draft_gpu_layers == 0);
    CHECK(all.value().n_draft_threads == 3);

    const Result<Options> none =
        parse({"--model", "m", "--draft-max", "0", "--draft-tree", "0", "--draft-state-memory", "0"});
    REQUIRE(none);
    CHECK(none.value().n_draft_most == 0);
    CHECK(none.value().draft_tree == 0);
    CHECK(none.value().spec_memory_bytes == 0);
}

TEST_CASE("options: speculation that cannot be") {
    const std::vector<std::vector<std::string>> wrong = {
        {"--draft-max", "65"},
        {"--draft-max", "-1"},
        {"--draft-max", ""},
        {"--draft-adaptive", "maybe"},
        {"--draft-accept", "always"},
        {"--draft-accept", "rejection"},
        {"--draft-ngram", ""},
        {"--draft-ngram=1"},
        {"--draft-tree", "257"},
        {"--draft-tree", "-1"},
        {"--draft-state-memory", "2X"},
        {"--draft-state-memory", "-1"},
        {"--draft", ""},
        {"--draft"},
        {"--mtp=on"},
        {"--draft-threads", "0"},
        {"--draft-gpu-layers", "x"},
    };
    for (const std::vector<std::string>& words : wrong) {
        std::vector<std::string> line = {"--model", "m", "--mtp"};
        line.insert(line.end(), words.begin(), words.end());
        const Result<Options> parsed = parse(line);
        REQUIRE_FALSE(parsed);
        CHECK(parsed.error().text.find(words[0].substr(0, words[0].find('='))) != std::string::npos);
    }
    for (const char* option :
         {"--draft-cache-type-k", "--draft-cache-type-v", "--draft-gpu-layers", "--draft-threads"}) {
        const std::string value = std::string(option).find("type") == std::string::npos ? "1" : "f16";
        const Result<Options> parsed = parse({"--model", "m", option, value});
        REQUIRE_FALSE(parsed);
        CHECK(parsed.error().text.find(option) != std::string::npos);
        CHECK(parsed.error().text.find("--mtp") != std::string::npos);
        CHECK(parse({"--model", "m", "--draft", "d", option, value}));
    }
}

TEST_CASE("options: what older drivers call them, and what they have no use for here") {
    const Result<Options> older = parse({"--model", "m", "--daemon", "--max-ctx=100", "--kv-k", "f16", "--kv-v", "q8_0",
                                         "--fast-rollback", "--ddtree", "--ddtree-budget", "22", "--ddtree-temp=1.5",
                                         "--ddtree-no-chain-seed", "--pflash", "--pflash-alpha", "0.1", "--seed", "7"});
    REQUIRE_MESSAGE(older.ok(), (older ? "" : older.error().text));
    CHECK(older.value().n_ctx == 100);
    CHECK(older.value().cache_type_k == "f16");
    CHECK(older.value().cache_type_v == "q8_0");
    CHECK(older.value().seed == 7);
    CHECK(older.value().draft_tree.value_or(0) == 0);
    REQUIRE(older.value().notes.size() == 7);
    CHECK(older.value().notes[2].starts_with("--ddtree-budget does nothing any more: --draft-tree N"));
    CHECK(parse({"--model", "m", "--ctx-size", "64"}).value().n_ctx == 64);
    CHECK(parse({"--model", "m", "--daemon"}).value().notes.empty());
    CHECK_FALSE(parse({"--model", "m", "--ddtree=1"}));
    CHECK_FALSE(parse({"--model", "m", "--ddtree-nonsense"}));
}

TEST_CASE("options: where drafts come from, in one word") {
    CHECK(parse({"--model", "m", "--draft-method", "none"}).value().n_draft_most == 0);
    CHECK(parse({"--model", "m", "--draft", "d", "--draft-method", "none"}).value().n_draft_most == 0);
    CHECK(parse({"--model", "m", "--draft-method", "mtp"}).value().mtp);
    CHECK(parse({"--model", "m", "--draft-method", "dflash", "--draft", "d"}));
    CHECK_FALSE(parse({"--model", "m", "--draft-method", "auto"}).value().n_draft_most);
    for (const std::vector<std::string>& wrong : {std::vector<std::string>{"dflash"},
                                                  {"dflash", "--draft", "d", "--mtp"},
                                                  {"none", "--mtp"},
                                                  {"none", "--draft-max", "4"},
                                                  {"eagle"}}) {
        std::vector<std::string> line = {"--model", "m", "--draft-method"};
        line.insert(line.end(), wrong.begin(), wrong.end());
        const Result<Options> parsed = parse(line);
        REQUIRE_FALSE(parsed);
        CHECK(parsed.error().text.find("--draft-method") != std::string::npos);
    }
}

TEST_CASE("options: how positions are seen") {
    const Result<Options> yarn =
        parse({"--model", "m", "--rope-scaling", "yarn", "--rope-scale", "4", "--yarn-orig-ctx", "32768",
               "--yarn-ext-factor", "0", "--yarn-attn-factor", "1.5", "--yarn-beta-slow", "1", "--yarn-beta-fast", "32",
               "--rope-freq-base", "1e6"});
    REQUIRE_MESSAGE(yarn.ok(), (yarn ? "" : yarn.error().text));
    CHECK(yarn.value().rope_scaling == RopeScalingChoice::yarn);
    CHECK(yarn.value().rope_scale == 4.0F);
    CHECK(yarn.value().yarn_orig_ctx == 32768);
    CHECK(yarn.value().yarn_ext_factor == 0.0F);
    CHECK(yarn.value().rope_freq_base == 1e6F);
    const std::vector<std::vector<std::string>> wrong = {{"--rope-scaling", "ntk"},
                                                         {"--rope-scale", "0"},
                                                         {"--rope-scale", "-1"},
                                                         {"--rope-scale", "nan"},
                                                         {"--rope-freq-base", "inf"},
                                                         {"--rope-freq-scale", ""},
                                                         {"--yarn-orig-ctx", "0"},
                                                         {"--yarn-ext-factor", "-0.1"},
                                                         {"--yarn-beta-fast", "1x"},
                                                         {"--rope-scale", "2", "--rope-freq-scale", "0.5"},
                                                         {"--rope-scale", "2", "--rope-scaling", "none"},
                                                         {"--yarn-beta-slow", "1", "--rope-scaling", "linear"}};
    for (const std::vector<std::string>& words : wrong) {
        std::vector<std::string> line = {"--model", "m"};
        line.insert(line.end(), words.begin(), words.end());
        const Result<Options> parsed = parse(line);
        REQUIRE_FALSE(parsed);
        CHECK(parsed.error().text.find(words[0]) != std::string::npos);
    }
}

TEST_CASE("options: tokens may be counted in powers of 1024") {
    const Result<Options> read = parse({"--model", "m", "--ctx", "40K", "--kv-offload", "1M", "--ubatch", "512"});
    REQUIRE(read);
    CHECK(read.value().n_ctx == 40960);
    CHECK(read.value().n_kvflash == 1 << 20);
    CHECK(read.value().n_ubatch == 512);
    for (const char* text : {"0K", "K", "1.5K", "40KB", "262145K", "9223372036854775807M", "4G"}) {
        const Result<Options> refused = parse({"--model", "m", "--ctx", text});
        REQUIRE_FALSE(refused);
        CHECK(refused.error().text.find("takes a whole number of tokens from 1 to 268435456") != std::string::npos);
    }
}

TEST_CASE("options: overridden keys add up") {
    const Result<Options> both =
        parse({"--model", "m", "--override-kv", "a=int:1,b=str:x", "--override-kv", "c=bool:true"});
    REQUIRE(both);
    CHECK(both.value().kv_overrides == std::vector<std::string>{"a=int:1", "b=str:x", "c=bool:true"});
    CHECK_FALSE(parse({"--model", "m", "--override-kv", "a=int:1,"}));
    CHECK_FALSE(parse({"--model", "m", "--override-kv", ""}));
}

TEST_CASE("options: the help names every option") {
    const std::string help = help_text();
    for (const char* name : {"--model",
                             "--ctx",
                             "--pool",
                             "--lanes",
                             "--queue",
                             "--batch",
                             "--ubatch",
                             "--threads",
                             "--gpu-layers",
                             "--cache-type-k",
                             "--cache-type-v",
                             "--flash-attn",
                             "--stream-fd",
                             "--mux",
                             "--seed",
                             "--log-level",
                             "--die-with-parent",
                             "--version",
                             "--help",
                             "--draft",
                             "--mtp",
                             "--draft-max",
                             "--draft-adaptive",
                             "--draft-accept",
                             "--draft-ngram",
                             "--draft-tree",
                             "--draft-state-memory",
                             "--draft-cache-type-k",
                             "--draft-cache-type-v",
                             "--draft-gpu-layers",
                             "--draft-threads"}) {
        CHECK(help.find(name) != std::string::npos);
    }
}

TEST_CASE("a writer never blocks: what the reader has not taken waits, in order") {
    for (const auto make : {make_pipe, make_socket}) {
        Channel channel = make();
        FdWriter writer(channel.writer.get());
        std::string sent;
        for (int i = 0; i < 200000; ++i) sent += std::to_string(i) + "\n";
        writer.append(sent);
        writer.flush();  // would hang here if it blocked
        CHECK(writer.backlog_bytes() > 0);
        std::string received;
        while (received.size() < sent.size()) {
            received += read_some(channel.reader.get());
            writer.flush();
        }
        CHECK(received == sent);
        CHECK(writer.backlog_bytes() == 0);
    }
}

TEST_CASE("a writer whose reader has gone closes and drops what it held") {
    signal(SIGPIPE, SIG_IGN);
    for (const auto make : {make_pipe, make_socket}) {
        Channel channel = make();
        FdWriter writer(channel.writer.get());
        channel.reader.reset();
        writer.append("x");
        writer.flush();
        CHECK(writer.is_closed());
        writer.append("y");
        CHECK(writer.backlog_bytes() == 0);
    }
}

TEST_CASE("a writer leaves the flags of the descriptor alone") {
    Channel channel = make_pipe();
    FdWriter writer(channel.writer.get());
    writer.append("x");
    writer.flush();
    CHECK((::fcntl(channel.writer.get(), F_GETFL) & O_NONBLOCK) == 0);
}

}  // TEST_SUITE("daemon")
