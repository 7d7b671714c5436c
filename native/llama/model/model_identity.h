// memory_identity: what a text's memory depends on besides the text, as one name. Two daemons whose identities are
// equal may exchange pages; anything that would change a KV row changes the identity. Never the path or the time of
// the file, which say nothing about what is in it.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "llama/model/model.h"

namespace luce::llama {

// 32 hexadecimal digits of the SHA-256 over every shard's header (metadata and tensor infos) and sampled blocks of
// every tensor, the KV types, the page size, the format version, and what is not as the file says (rope, overrides).
// Errors: start_failed.
Result<std::string> memory_identity(const std::vector<std::string>& shards, const ModelInfo& info);

// Of the memory that a model and its draft keep together.
std::string joint_identity(const std::string& model, const std::string& draft);

}  // namespace luce::llama
