// The C++ codec against the golden vectors that the Python codec passes too (protocol/vectors/), and what vectors do
// not hold: long lines, and texts that are not UTF-8. Knows the codec's public headers only.
#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tests/wire/wire_json.h"
#include "wire/command_parser.h"
#include "wire/line_decoder.h"
#include "wire/percent.h"
#include "wire/reply.h"
#include "wire/token_record.h"

using luce::tests::bytes_of;
using luce::tests::json;
using luce::tests::read_vectors;
using luce::tests::to_json;
using luce::tests::with_binary32_numbers;
using luce::tests::with_sampling_defaults;
using namespace luce::wire;

namespace {

std::vector<DecodedLine> lines_of(LineDecoder& decoder) {
    std::vector<DecodedLine> lines;
    while (std::optional<DecodedLine> line = decoder.next()) lines.push_back(std::move(*line));
    return lines;
}

enum class Arrival { whole, byte_by_byte, with_trailing_bytes };
constexpr Arrival kArrivals[] = {Arrival::whole, Arrival::byte_by_byte, Arrival::with_trailing_bytes};

void feed(LineDecoder& decoder, const std::string& bytes, Arrival arrival) {
    if (arrival == Arrival::byte_by_byte) {
        for (const char byte : bytes) decoder.feed(std::string_view(&byte, 1));
    } else {
        decoder.feed(arrival == Arrival::whole ? bytes : bytes + "tr");
    }
}

void check_command(const json& vector, const std::string& line) {
    const std::variant<Command, ParseError> result = parse_command(line);
    if (vector.contains("command")) {
        REQUIRE(std::holds_alternative<Command>(result));
        CHECK(to_json(std::get<Command>(result)) ==
              with_binary32_numbers(with_sampling_defaults(vector.at("command"))));
        return;
    }
    REQUIRE(std::holds_alternative<ParseError>(result));
    const auto& refused = std::get<ParseError>(result);
    const json& expected = vector.at("error");
    CHECK(luce::name_of(refused.error.code) == expected.at("code").get<std::string>());
    CHECK(refused.id.value_or(-1) == expected.value("id", -1));
    CHECK(refused.generating == expected.value("generating", false));
    for (const json& word : expected.value("mentions", json::array())) {
        CHECK_MESSAGE(refused.error.text.find(word.get<std::string>()) != std::string::npos, refused.error.text);
    }
}

ParseError refusal_of(const std::string& line) {
    const std::variant<Command, ParseError> result = parse_command(line);
    REQUIRE(std::holds_alternative<ParseError>(result));
    return std::get<ParseError>(result);
}

// The line with `word` added as often as the length allows.
std::string extended(std::string line, std::string_view word, std::size_t max_bytes = kMaxLineBytes / 4) {
    line.reserve(max_bytes);
    while (line.size() + word.size() <= max_bytes) line += word;
    return line;
}

double seconds_to_parse(const std::string& line) {
    const auto start = std::chrono::steady_clock::now();
    (void)parse_command(line);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

TEST_SUITE("wire") {

TEST_CASE("commands: every vector, framed whole, byte by byte and with trailing bytes") {
    for (const json& vector : read_vectors("commands")) {
        CAPTURE(vector.at("name").get<std::string>());
        const std::string line = bytes_of(vector, "line");
        check_command(vector, line);
        for (const Arrival arrival : kArrivals) {
            LineDecoder decoder;
            feed(decoder, line + "\r\n", arrival);
            const std::vector<DecodedLine> lines = lines_of(decoder);
            REQUIRE(lines.size() == 1);
            CHECK(lines[0].text == line);
        }
    }
}

TEST_CASE("replies: every vector that a daemon of this version sends") {
    for (const json& vector : read_vectors("replies")) {
        if (vector.contains("error") || vector.value("parse_only", false)) continue;
        CAPTURE(vector.at("name").get<std::string>());
        const Reply reply = luce::tests::reply_from(vector.at("reply"));
        CHECK(format_reply(reply) == bytes_of(vector, "line") + "\n");
    }
}

TEST_CASE("tokens: every vector that a daemon may send, whole and record by record") {
    for (const json& vector : read_vectors("tokens")) {
        if (vector.contains("error") || vector.contains("n_pending_bytes")) continue;
        CAPTURE(vector.at("name").get<std::string>());
        const std::string expected = luce::tests::from_hex(vector.at("hex"));
        const Dialect dialect = vector.at("dialect") == "plain" ? Dialect::plain : Dialect::multiplexed;
        std::string out;
        for (const json& event : vector.at("events")) {
            append_record(out, dialect, event[1], event[0] == "end" ? kSentinel : event[2].get<std::int32_t>());
            CHECK(expected.starts_with(out));
        }
        CHECK(out == expected);
    }
}

TEST_CASE("framing: every vector, whole, byte by byte and with trailing bytes") {
    for (const json& vector : read_vectors("framing")) {
        CAPTURE(vector.at("name").get<std::string>());
        const std::string input = bytes_of(vector, "input");
        for (const Arrival arrival : kArrivals) {
            const bool ends_inside_a_line = !input.empty() && !input.ends_with('\n');
            if (arrival == Arrival::with_trailing_bytes && (ends_inside_a_line || vector.contains("finish"))) continue;
            LineDecoder decoder(vector.value("max_line_bytes", kMaxLineBytes));
            feed(decoder, input, arrival);
            if (vector.contains("finish")) {
                decoder.finish();
                decoder.finish();
            }
            const std::vector<DecodedLine> lines = lines_of(decoder);
            REQUIRE(lines.size() == vector.at("lines").size());
            for (std::size_t i = 0; i < lines.size(); ++i) {
                const json& expected = vector.at("lines")[i];
                CHECK(lines[i].too_long == expected.value("too_long", false));
                if (!lines[i].too_long) CHECK(lines[i].text == bytes_of(expected, "text"));
            }
        }
    }
}

TEST_CASE("framing: has_next says whether next has a line") {
    LineDecoder decoder;
    decoder.feed("a\nb");
    CHECK(decoder.has_next());
    CHECK(decoder.next().has_value());
    CHECK_FALSE(decoder.has_next());
    CHECK_FALSE(decoder.next().has_value());
}

TEST_CASE("parse_command takes blank lines too, although framing passes none on") {
    for (const std::string line : {"", " ", "\t \t"}) {
        const ParseError refused = refusal_of(line);
        CHECK(refused.error.code == luce::ErrorCode::bad_args);
        CHECK_FALSE(refused.generating);
    }
}

TEST_CASE("long lines are parsed in time that grows with their length only") {
    // The limit is some hundred times what an idle machine needs, and far below what anything quadratic would take.
    constexpr double kLimitSeconds = 20;
    const std::pair<const char*, const char*> kLines[] = {{"gen id=1 n=1 prompt=1", ",-1"},
                                                          {"gen id=1 n=1 prompt=", ","},
                                                          {"/p 1", " snap=1:1"},
                                                          {"p", " 1"},
                                                          {"p", " samp="},
                                                          {"gen", " a=1"},
                                                          {"frob", " id=x"},
                                                          {"gen id=1 temp=", "1"},
                                                          {"gen id=1 temp=0.", "0"},
                                                          {"/p ", "0"},
                                                          {"gen id=1 gen_prompt=", "%e9"},
                                                          {"", "\t"},
                                                          {"gen id=1 think_end=1", "|1"},
                                                          {"gen id=1 triggers=", "word:a,"},
                                                          {"/p 1 snap=1:1", ",1:2"},
                                                          {"gen id=1 n=1 prompt=1 restore=1 chain=1", ",1"},
                                                          {"gen id=1 n=1 prompt=1 marks=1", ",1"},
                                                          {"gen id=1 n=1 prompt=1 keep=1:2", ",3:4"},
                                                          {"compress id=1 share=1 prompt=1", ",2"},
                                                          {"compress p 1", " nopark"},
                                                          {"free drafter", " x"},
                                                          {"RESTORE 0 p", " 1"},
                                                          {"RESTORE_CHAIN 0 1", ",1"},
                                                          {"SAVE 0 p", " 1"},
                                                          {"park", " target"},
                                                          {"thin", " slot=1"}};
    for (const auto& [start, word] : kLines) {
        CAPTURE(start);
        CAPTURE(word);
        CHECK(seconds_to_parse(extended(start, word)) < kLimitSeconds);
    }
}

TEST_CASE("the longest prompt is read") {
    const std::string line = extended("gen id=1 n=1 prompt=1", ",2", kMaxLineBytes);
    const std::variant<Command, ParseError> result = parse_command(line);
    REQUIRE(std::holds_alternative<Command>(result));
    CHECK(std::get<Generate>(std::get<Command>(result)).prompt.size() > 8'000'000);
}

TEST_CASE("slots given twice are found in a long list") {
    std::string line = "/p 1 snap=1:0";
    for (int slot = 1; slot < 200'000; ++slot) line += ",1:" + std::to_string(slot);
    CHECK(std::holds_alternative<Command>(parse_command(line)));
    CHECK(refusal_of(line + ",1:777").error.text.find("slot 777 twice") != std::string::npos);
}

TEST_CASE("err: what is not UTF-8 in a text becomes question marks") {
    const Err err{.id = std::nullopt, .error = {luce::ErrorCode::io_error, "a\xFF\xC3 b\xE6\x97"}};
    CHECK(format_reply(err) == "err io_error a?? b??\n");
}

TEST_CASE("lp: what is no number cannot come") {
    const Logprobs logprobs{.id = 1, .index = 0, .entries = {{5, std::nanf("")}, {6, HUGE_VALF}}};
    CHECK(format_reply(logprobs) == "[lp] id=1 i=0 5:-inf,6:-inf\n");
}

TEST_CASE("percent: every byte survives the round trip") {
    std::string bytes;
    for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
    CHECK(percent_decode(percent_encode(bytes)) == bytes);
    CHECK(percent_encode("az-._~/:,@+=") == "az-._~/:,@+=");
    CHECK(percent_encode(std::string_view("\0 %\xFF", 4)) == "%00%20%25%FF");
    CHECK(percent_decode("%") == std::nullopt);
    CHECK(percent_decode("a%4") == std::nullopt);
    CHECK(percent_decode("%g0") == std::nullopt);
}

TEST_CASE("status: speculation since the start") {
    StatusLine line{{{"lanes_busy", "0"}}};
    append_speculation(line, {});
    CHECK(format_reply(line) ==
          "[status] lanes_busy=0 spec_drafted=0 spec_accepted=0 spec_steps=0 spec_draft_s=0.000000 "
          "spec_verify_s=0.000000\n");
    StatusLine busy;
    append_speculation(busy, {8, 5, 6, 2, 0.25, 1.5});
    CHECK(format_reply(busy) ==
          "[status] spec_drafted=8 spec_accepted=5 spec_steps=6 spec_share=0.3333 spec_tokens_per_step=1.8333 "
          "spec_draft_s=0.250000 spec_verify_s=1.500000\n");
}

}  // TEST_SUITE("wire")
