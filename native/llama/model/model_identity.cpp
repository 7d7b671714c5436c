#include "llama/model/model_identity.h"

#include <gguf.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <memory>
#include <vector>

#include "base/sha256.h"

namespace luce::llama {
namespace {

constexpr int kFormatVersion = 1;
constexpr int kPageSize = 64;
constexpr std::uint64_t kBlockBytes = 4096;
constexpr std::uint64_t kBlocksPerTensor = 4;

struct GgufDeleter {
    void operator()(gguf_context* gguf) const { gguf_free(gguf); }
};

void hash_number(Sha256& hash, std::uint64_t number) {
    std::array<char, 8> bytes{};
    for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(number >> (8 * i));
    hash.update({bytes.data(), bytes.size()});
}

bool hash_range(Sha256& hash, std::ifstream& file, std::uint64_t begin, std::uint64_t n_bytes) {
    std::vector<char> block(std::min<std::uint64_t>(n_bytes, 1 << 20));
    file.seekg(static_cast<std::streamoff>(begin));
    while (n_bytes > 0) {
        const auto n = static_cast<std::streamsize>(std::min<std::uint64_t>(n_bytes, block.size()));
        if (!file.read(block.data(), n)) return false;
        hash.update({block.data(), static_cast<std::size_t>(n)});
        n_bytes -= static_cast<std::uint64_t>(n);
    }
    return true;
}

// Blocks spread evenly over the tensor, its first and last included: an edited or re-quantised tensor differs in them.
bool hash_tensor(Sha256& hash, std::ifstream& file, std::uint64_t begin, std::uint64_t n_bytes) {
    if (n_bytes <= kBlocksPerTensor * kBlockBytes) return hash_range(hash, file, begin, n_bytes);
    const std::uint64_t last = n_bytes - kBlockBytes;
    for (std::uint64_t i = 0; i < kBlocksPerTensor; ++i) {
        if (!hash_range(hash, file, begin + last * i / (kBlocksPerTensor - 1), kBlockBytes)) return false;
    }
    return true;
}

bool hash_shard(Sha256& hash, const std::string& path) {
    const std::unique_ptr<gguf_context, GgufDeleter> gguf(gguf_init_from_file(path.c_str(), {true, nullptr}));
    std::ifstream file(path, std::ios::binary);
    if (!gguf || !file) return false;
    const std::uint64_t data = gguf_get_data_offset(gguf.get());
    hash_number(hash, data);
    if (!hash_range(hash, file, 0, data)) return false;
    for (std::int64_t i = 0; i < gguf_get_n_tensors(gguf.get()); ++i) {
        const std::uint64_t begin = data + gguf_get_tensor_offset(gguf.get(), i);
        if (!hash_tensor(hash, file, begin, gguf_get_tensor_size(gguf.get(), i))) return false;
    }
    return true;
}

}  // namespace

Result<std::string> memory_identity(const std::vector<std::string>& shards, const ModelInfo& info) {
    Sha256 hash;
    hash_number(hash, kFormatVersion);
    hash_number(hash, kPageSize);
    for (const std::string& name : {info.cache_type_k, info.cache_type_v}) {
        hash_number(hash, name.size());
        hash.update(name);
    }
    // Where all is as the file says there is none of this, and memory from before there were such options is known.
    for (const std::string& settings : {info.rope.text(), info.overrides}) {
        if (settings.empty()) continue;
        hash_number(hash, settings.size());
        hash.update(settings);
    }
    for (const std::string& shard : shards) {
        if (!hash_shard(hash, shard)) return Error{ErrorCode::start_failed, shard + " cannot be read a second time"};
    }
    return to_hex(hash.finish()).substr(0, 32);
}

std::string joint_identity(const std::string& model, const std::string& draft) {
    Sha256 hash;
    for (const std::string& part : {model, draft}) {
        hash_number(hash, part.size());
        hash.update(part);
    }
    return to_hex(hash.finish()).substr(0, 32);
}

}  // namespace luce::llama
