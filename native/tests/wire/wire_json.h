// Golden vectors as C++ sees them: reading protocol/vectors/*.json, and commands and replies to and from the JSON that
// protocol/vectors/README.md describes. Test code; knows the codec's data, not its functions.
#pragma once

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "records/records.h"
#include "test_paths.h"
#include "wire/command.h"
#include "wire/reply.h"

namespace luce::tests {

using nlohmann::json;

inline json read_vectors(const std::string& name) {
    std::ifstream file(std::string(LUCE_VECTORS_DIR) + "/" + name + ".json");
    if (!file) throw std::runtime_error("no vectors " + name + " in " LUCE_VECTORS_DIR);
    return json::parse(file);
}

inline std::string from_hex(const std::string& hex) {
    std::string bytes;
    for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
        bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    }
    return bytes;
}

// The bytes under `key`, or in hexadecimal under `hex` or `<key>_hex`.
inline std::string bytes_of(const json& vector, const std::string& key) {
    for (const std::string& hex_key : {std::string("hex"), key + "_hex"}) {
        if (vector.contains(hex_key)) return from_hex(vector.at(hex_key));
    }
    return vector.at(key);
}

// A vector's numbers are binary64, the command's are binary32.
inline json with_binary32_numbers(json value) {
    if (value.is_number_float()) return static_cast<double>(static_cast<float>(value.get<double>()));
    if (value.is_structured()) {
        for (json& child : value) child = with_binary32_numbers(child);
    }
    return value;
}

// Puts fields into an object, leaving out those that are as when the line does not name them.
class JsonFields {
public:
    template <typename T>
    JsonFields& add(const std::string& key, const std::optional<T>& value) {
        if (value) object_[key] = as_json(*value);
        return *this;
    }
    template <typename T>
    JsonFields& add(const std::string& key, const std::vector<T>& items) {
        for (const T& item : items) object_[key].push_back(as_json(item));
        return *this;
    }
    template <typename T>
    JsonFields& add(const std::string& key, const T& value) {
        if (value != T{}) object_[key] = as_json(value);
        return *this;
    }
    template <typename T>
    JsonFields& add_always(const std::string& key, const T& value) {
        object_[key] = as_json(value);
        return *this;
    }
    JsonFields& add_object(const std::string& key, const JsonFields& fields) {
        if (!fields.object_.empty()) object_[key] = fields.object_;
        return *this;
    }
    const json& object() const { return object_; }

private:
    template <typename T>
    static json as_json(const T& value) {
        return value;
    }
    static json as_json(float value) { return std::isinf(value) ? json("-inf") : json(static_cast<double>(value)); }
    static json as_json(const std::pair<Token, float>& pair) { return json::array({pair.first, as_json(pair.second)}); }
    static json as_json(const wire::SnapshotPoint& point) {
        return {{"position", point.position}, {"slot", point.slot}};
    }
    static json as_json(const wire::ImageAt& image) { return {{"position", image.position}, {"path", image.path}}; }
    static json as_json(wire::Reading reading) {
        constexpr const char* kNames[] = {"full", "sparse", "auto"};
        return kNames[static_cast<int>(reading)];
    }
    static json as_json(const wire::PinSpan& span) { return {{"begin", span.begin}, {"end", span.end}}; }
    static json as_json(wire::SamplerKind kind) { return name_of(kind); }
    template <typename T>
    static json as_json(const std::vector<T>& items) {
        json list = json::array();
        for (const T& item : items) list.push_back(as_json(item));
        return list;
    }
    static json as_json(const wire::GrammarTrigger& trigger) {
        constexpr const char* kKinds[] = {"word", "pattern", "full", "token"};
        return JsonFields()
            .add("kind", std::string(kKinds[static_cast<int>(trigger.kind)]))
            .add("text", trigger.text)
            .add("token", trigger.token)
            .object();
    }

    json object_ = json::object();
};

// All of them: the daemon's defaults stand where the line says nothing.
inline JsonFields fields_of(const wire::SamplingArgs& sampling) {
    JsonFields fields;
    visit_fields(sampling, [&fields](const records::Field& field, const auto& value) {
        if constexpr (requires { value.has_value(); }) {
            fields.add(std::string(field.name), value);
        } else {
            fields.add_always(std::string(field.name), value);
        }
    });
    return fields;
}

// A vector says of the sampling what its line says.
inline json with_sampling_defaults(json command) {
    if (command.at("type") != "generate") return command;
    json sampling = fields_of(wire::SamplingArgs{}).object();
    sampling.update(command.value("sampling", json::object()));
    command["sampling"] = sampling;
    return command;
}

inline JsonFields fields_of(const wire::ConstraintArgs& constraint) {
    return JsonFields()
        .add("grammar", constraint.grammar)
        .add("grammar_path", constraint.grammar_path)
        .add("grammar_lazy", constraint.grammar_lazy)
        .add("triggers", constraint.triggers)
        .add("preserved", constraint.preserved)
        .add("generation_prompt", constraint.generation_prompt)
        .add("think_budget", constraint.think_budget)
        .add("think_start", constraint.think_start)
        .add("think_end", constraint.think_end)
        .add("think_message", constraint.think_message);
}

inline JsonFields fields_of(const wire::MemoryArgs& memory) {
    return JsonFields()
        .add("restore_slot", memory.restore_slot)
        .add("restore_at", memory.restore_at)
        .add("chain", memory.chain)
        .add("snapshots", memory.snapshots)
        .add("marks", memory.marks)
        .add("turn", memory.turn)
        .add("salt", memory.salt)
        .add("salt_from", memory.salt_from)
        .add("pins", memory.pins)
        .add("reuse", memory.reuse);
}

inline JsonFields fields_of(const wire::ReadingArgs& reading) {
    return JsonFields()
        .add("prefill", reading.prefill)
        .add("share", reading.share)
        .add("n_from", reading.n_from)
        .add("keep", reading.keep)
        .add("blocks", reading.blocks);
}

struct CommandToJson {
    json operator()(const wire::Generate& command) const {
        constexpr const char* kForms[] = {"positional", "file", "named"};
        return JsonFields()
            .add("type", std::string("generate"))
            .add("form", std::string(kForms[static_cast<int>(command.form)]))
            .add("id", command.id)
            .add("prompt", command.prompt)
            .add("prompt_path", command.prompt_path)
            .add("output_path", command.output_path)
            .add("n_generate", command.n_generate)
            .add_object("sampling", fields_of(command.sampling))
            .add_object("constraint", fields_of(command.constraint))
            .add_object("memory", fields_of(command.memory))
            .add_object("reading", fields_of(command.reading))
            .add("images", command.images)
            .add("stop_tokens", command.stop_tokens)
            .add("n_least", command.n_least)
            .add("ignore_eos", command.ignore_eos)
            .add("n_logprobs", command.n_logprobs)
            .add("n_prompt_logprobs", command.n_prompt_logprobs)
            .add("prompt_logprobs_from", command.prompt_logprobs_from)
            .add("n_generated_before", command.n_generated_before)
            .add("priority", command.priority)
            .object();
    }
    json operator()(const wire::Compress& compress) const {
        return JsonFields()
            .add("type", std::string("compress"))
            .add("id", compress.id)
            .add("prompt", compress.prompt)
            .add("prompt_path", compress.prompt_path)
            .add("share", compress.share)
            .add("keep", compress.keep)
            .add("blocks", compress.blocks)
            .add("scorer", compress.scorer)
            .object();
    }
    json operator()(const wire::Embed& embed) const {
        return JsonFields()
            .add("type", std::string("embed"))
            .add_always("id", embed.id)
            .add("prompt", embed.prompt)
            .add("prompt_path", embed.prompt_path)
            .object();
    }
    json operator()(const wire::Cancel& cancel) const { return {{"type", "cancel"}, {"id", cancel.id}}; }
    json operator()(const wire::Status& status) const {
        return JsonFields().add("type", std::string("status")).add("id", status.id).add("check", status.check).object();
    }
    json operator()(const wire::Ping& ping) const {
        return JsonFields().add("type", std::string("ping")).add("word", ping.word).object();
    }
    json operator()(const wire::Quit&) const { return {{"type", "quit"}}; }
    json operator()(const wire::Snapshot& snapshot) const {
        return slot_fields("snapshot", snapshot).add("of", snapshot.of).object();
    }
    json operator()(const wire::ThinSnapshot& thin) const {
        return slot_fields("thin_snapshot", thin)
            .add_always("begin", thin.begin)
            .add_always("end", thin.end)
            .add("of", thin.of)
            .object();
    }
    json operator()(const wire::FreeSlot& free) const { return slot_fields("free_slot", free).object(); }
    json operator()(const wire::FreeScorer&) const { return {{"type", "free_scorer"}}; }
    json operator()(const wire::ListSlots& list) const {
        return JsonFields().add("type", std::string("list_slots")).add("id", list.id).object();
    }
    json operator()(const wire::SaveSlot& save) const {
        return slot_fields("save_slot", save).add("path", save.path).object();
    }
    json operator()(const wire::LoadSlot& load) const {
        return slot_fields("load_slot", load).add("path", load.path).object();
    }
    json operator()(const wire::Park& park) const { return park_fields("park", park).object(); }
    json operator()(const wire::Unpark& unpark) const { return park_fields("unpark", unpark).object(); }
    json operator()(const wire::Clear& clear) const {
        return JsonFields().add("type", std::string("clear")).add("id", clear.id).add("disk", clear.disk).object();
    }

    json operator()(const wire::ListTexts& texts) const {
        return JsonFields()
            .add("type", std::string("list_texts"))
            .add("id", texts.id)
            .add("first", texts.first)
            .add("n_most", texts.n_most)
            .object();
    }
    json operator()(const wire::HoldText& hold) const {
        json object =
            JsonFields().add("type", std::string("hold_text")).add("id", hold.id).add("page", hold.page).object();
        if (!hold.on) object["on"] = false;
        return object;
    }
    json operator()(const wire::ForgetText& forget) const {
        return JsonFields()
            .add("type", std::string("forget_text"))
            .add("id", forget.id)
            .add("page", forget.page)
            .object();
    }
    json operator()(const wire::WatchPages& watch) const {
        json object = JsonFields().add("type", std::string("watch_pages")).add("id", watch.id).object();
        if (!watch.on) object["on"] = false;
        return object;
    }
    json operator()(const wire::AdoptFiles& adopt) const {
        return JsonFields()
            .add("type", std::string("adopt_files"))
            .add("id", adopt.id)
            .add("files", adopt.files)
            .object();
    }
    json operator()(const wire::ListFiles& list) const {
        return JsonFields()
            .add("type", std::string("list_files"))
            .add("id", list.id)
            .add("since", list.since)
            .add("n_most", list.n_most)
            .object();
    }
    json operator()(const wire::WriteText& write) const {
        return JsonFields().add("type", std::string("write_text")).add("id", write.id).add("page", write.page).object();
    }
    json operator()(const wire::ProbeText& probe) const {
        return JsonFields()
            .add("type", std::string("probe_text"))
            .add("id", probe.id)
            .add("salt", probe.salt)
            .add("salt_from", probe.salt_from)
            .add("prompt", probe.prompt)
            .add("prompt_path", probe.prompt_path)
            .object();
    }
    json operator()(const wire::DescribeImage& image) const {
        return JsonFields()
            .add("type", std::string("describe_image"))
            .add_always("id", image.id)
            .add("path", image.path)
            .add("salt", image.salt)
            .object();
    }

private:
    template <typename T>
    static JsonFields slot_fields(const char* type, const T& command) {
        return JsonFields().add("type", std::string(type)).add("id", command.id).add_always("slot", command.slot);
    }
    template <typename T>
    static JsonFields park_fields(const char* type, const T& command) {
        const std::string what = command.what == wire::Park::What::target ? "" : "draft";
        return JsonFields().add("type", std::string(type)).add("id", command.id).add("what", what);
    }
};

inline json to_json(const wire::Command& command) { return std::visit(CommandToJson{}, command); }

inline double number_from(const json& value) {
    if (!value.is_string()) return value;
    const double infinity = std::numeric_limits<double>::infinity();
    return value == "-inf" ? -infinity : infinity;
}

template <typename T>
std::optional<T> optional_from(const json& object, const char* key) {
    if (!object.contains(key)) return std::nullopt;
    return object.at(key).get<T>();
}

inline ErrorCode error_code_from(const std::string& name) {
    for (int i = 0; i <= static_cast<int>(ErrorCode::internal); ++i) {
        if (name_of(static_cast<ErrorCode>(i)) == name) return static_cast<ErrorCode>(i);
    }
    throw std::runtime_error("no error code " + name);
}

inline void read_stat(const json& value, double& into) { into = number_from(value); }
inline void read_stat(const json& value, wire::StopReason& into) {
    const auto* found = std::ranges::find(records::kStopReasonNames, value.get<std::string>());
    into = static_cast<wire::StopReason>(found - std::begin(records::kStopReasonNames));
}
template <typename T>
void read_stat(const json& value, T& into) {
    into = value.get<T>();
}
template <typename T>
void read_stat(const json& value, std::optional<T>& into) {
    if constexpr (std::is_class_v<T>) {
        visit_fields(into.emplace(), [&value](const records::Field& field, auto& inner) {
            if (value.contains(field.name)) read_stat(value.at(std::string(field.name)), inner);
        });
    } else {
        into = value.get<T>();
    }
}

inline wire::GenerateOk generate_ok_from(const json& object) {
    wire::GenerateOk ok;
    ok.id = optional_from<wire::RequestId>(object, "id");
    visit_fields(ok.stats, [&object](const records::Field& field, auto& value) {
        if (object.contains(field.name)) read_stat(object.at(std::string(field.name)), value);
    });
    ok.output_path = optional_from<std::string>(object, "output_path");
    return ok;
}

inline wire::CompressOk compress_ok_from(const json& object) {
    wire::CompressOk ok;
    ok.id = optional_from<wire::RequestId>(object, "id");
    ok.n_in = object.at("n_in");
    ok.n_out = object.at("n_out");
    for (const json& part : object.value("parts", json::array())) {
        ok.parts.push_back({part.at("begin"), part.at("end")});
    }
    return ok;
}

inline std::vector<std::pair<Token, float>> entries_from(const json& object) {
    std::vector<std::pair<Token, float>> entries;
    for (const json& entry : object.at("entries")) {
        entries.emplace_back(entry[0].get<Token>(), static_cast<float>(number_from(entry[1])));
    }
    return entries;
}

inline wire::Park::What what_from(const json& object) {
    const std::string name = object.value("what", "target");
    return name == "draft" ? wire::Park::What::draft : wire::Park::What::target;
}

// The replies that say something of a slot; nothing if it is none of them.
inline std::optional<wire::Reply> snap_reply_from(const std::string& type, std::optional<wire::RequestId> id,
                                                  const json& object) {
    if (type == "slot_list") return wire::SlotList{id, object.value("slots", std::vector<std::int32_t>{})};
    const std::int32_t slot = object.value("slot", 0);
    if (type == "snapshot_taken") return wire::SnapshotTaken{id, slot, object.at("cur_pos")};
    if (type == "thin_taken") return wire::ThinTaken{id, slot, object.at("begin"), object.at("end")};
    if (type == "slot_freed") return wire::SlotFreed{id, slot};
    if (type == "slot_saved") return wire::SlotSaved{id, slot, object.at("bytes")};
    if (type == "inline_snapshot") return wire::InlineSnapshot{id, slot, object.at("cur_pos")};
    if (type == "inline_snapshot_failed")
        return wire::InlineSnapshotFailed{id, slot, error_code_from(object.at("code"))};
    return std::nullopt;
}

inline wire::Reply reply_from(const json& object) {
    using Fields = std::vector<std::pair<std::string, std::string>>;
    const std::string type = object.at("type");
    const std::optional<wire::RequestId> id = optional_from<wire::RequestId>(object, "id");
    if (type == "generate_ok") return generate_ok_from(object);
    if (type == "compress_ok") return compress_ok_from(object);
    if (type == "err") return wire::Err{id, {error_code_from(object.at("code")), object.value("text", "")}};
    if (type == "pong") return wire::Pong{object.value("word", "")};
    if (type == "plain_ok") return wire::PlainOk{id};
    if (type == "parked") return wire::Parked{id, what_from(object)};
    if (type == "unparked") return wire::Unparked{id, what_from(object)};
    if (const std::optional<wire::Reply> reply = snap_reply_from(type, id, object)) return *reply;
    if (type == "embedding") {
        return wire::Embedding{object.at("id"), object.at("n_tokens"), object.value("values", std::vector<float>{})};
    }
    if (type == "cancelled") return wire::Cancelled{object.at("id")};
    if (type == "prefill_progress") return wire::PrefillProgress{id, object.at("n_done"), object.at("n_total")};
    if (type == "logprobs") return wire::Logprobs{id, object.at("index"), entries_from(object)};
    if (type == "prompt_logprobs") return wire::PromptLogprobs{id, object.at("position"), entries_from(object)};
    if (type == "status") return wire::StatusLine{object.value("fields", Fields{})};
    if (type == "texts") return wire::TextsLine{object.value("fields", Fields{})};
    if (type == "pages") {
        return wire::PagesLine{object.value("begins_anew", false), object.value("pages", std::vector<std::string>{})};
    }
    if (type == "files") {
        return wire::FilesLine{object.at("id"), object.at("next"), object.value("files", std::vector<std::string>{})};
    }
    if (type == "adopted") {
        return wire::Adopted{object.at("id"), object.at("n_new"), object.at("n_known"), object.at("n_missing")};
    }
    if (type == "probed") {
        return wire::Probed{object.at("id"), object.at("n_tokens"), object.at("n_known"), object.at("n_pages")};
    }
    if (type == "ready") return wire::ReadyLine{object.value("fields", Fields{})};
    if (type == "pool_size") return wire::PoolSize{object.at("n_tokens")};
    if (type == "load_progress") return wire::LoadProgress{object.at("percent")};
    if (type == "image_described") {
        return wire::ImageDescribed{object.at("id"), object.value("ids", std::vector<Token>{})};
    }
    if (type == "out_of_memory") return wire::OutOfMemory{object.at("reason")};
    throw std::runtime_error("no reply " + type);
}

}  // namespace luce::tests
