#include "daemon/commands/disk_commands.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "daemon/commands/prompt_file.h"
#include "daemon/commands/text_fields.h"
#include "engine/request.h"
#include "memory/pages/page_name.h"
#include "memory/pages/text_salt.h"
#include "memory/tiers/disk_file_name.h"

namespace luce::daemon {
namespace {

constexpr std::size_t kMaxFiles = 4096;  // in one line

Error no_disk() { return {ErrorCode::unsupported, "there is no disk cache (--disk-cache)"}; }

Result<std::vector<memory::DiskFileName>> parse_names(const std::vector<std::string>& files) {
    if (files.size() > kMaxFiles) {
        return Error{ErrorCode::bad_args, "files= has more than " + std::to_string(kMaxFiles) + " names"};
    }
    std::vector<memory::DiskFileName> names;
    for (const std::string& file : files) {
        const std::optional<memory::DiskFileName> name = memory::parse_file_name(file);
        if (!name) return Error{ErrorCode::bad_args, "files= has '" + file + "', which is no file of a disk cache"};
        names.push_back(*name);
    }
    return names;
}

std::vector<std::string> describe(const std::vector<memory::DiskFile>& files) {
    std::vector<std::string> described;
    for (const memory::DiskFile& file : files) {
        described.push_back(to_file_name(file.name) + ':' + std::to_string(file.n_bytes));
    }
    return described;
}

}  // namespace

void DiskCommands::serve(const wire::AdoptFiles& command, const Done& done) {
    memory::DiskStore* disk = memory_.exchange().disk();
    if (disk == nullptr) return done(wire::Err{command.id, no_disk()});
    Result<std::vector<memory::DiskFileName>> names = parse_names(command.files);
    if (!names) return done(wire::Err{command.id, names.error()});
    disk->adopt(std::move(names).value(), [id = command.id, done](const memory::AdoptedFiles& adopted) {
        const auto n = [](std::size_t count) { return static_cast<std::int32_t>(count); };
        done(wire::Adopted{id.value_or(0), n(adopted.n_new), n(adopted.n_known), n(adopted.n_missing)});
    });
}

void DiskCommands::serve(const wire::ListFiles& command, const Done& done) {
    const memory::DiskStore* disk = memory_.exchange().disk();
    if (disk == nullptr) return done(wire::Err{command.id, no_disk()});
    const auto n_most = static_cast<std::size_t>(command.n_most.value_or(kMaxFiles));
    const std::vector<memory::DiskFile> files = disk->files_since(command.since, std::min(n_most, kMaxFiles));
    const std::uint64_t next = files.empty() ? disk->next_number() : files.back().number + 1;
    done(wire::FilesLine{command.id.value_or(0), next, describe(files)});
}

void DiskCommands::serve(const wire::WriteText& command, const Done& done) {
    memory::DiskStore* disk = memory_.exchange().disk();
    if (disk == nullptr) return done(wire::Err{command.id, no_disk()});
    const std::optional<memory::PageName> page = memory::page_name_of(command.page);
    if (!page) return done(wire::Err{command.id, no_page_name()});
    memory_.exchange().write(*page, [id = command.id, done, disk](const Result<std::vector<memory::DiskFile>>& files) {
        if (!files) return done(wire::Err{id, files.error()});
        done(wire::FilesLine{id.value_or(0), disk->next_number(), describe(files.value())});
    });
}

void DiskCommands::serve(const wire::ProbeText& command, const Done& done) {
    Result<Tokens> text = command.prompt;
    if (command.prompt_path) {
        text = read_prompt_file(*command.prompt_path, PromptLayout::raw, engine::kMaxSparsePrompt);
    }
    if (!text) return done(wire::Err{command.id, text.error()});
    const auto n_tokens = static_cast<std::int32_t>(text.value().size());
    Tokens names = std::move(text).value();
    if (command.salt) names = memory::salted(std::move(names), {*command.salt, command.salt_from.value_or(0)});
    const memory::Reach reach = memory_.reach(names);
    done(wire::Probed{command.id.value_or(0), n_tokens, reach.n_known, static_cast<std::int32_t>(reach.n_pages)});
}

}  // namespace luce::daemon
