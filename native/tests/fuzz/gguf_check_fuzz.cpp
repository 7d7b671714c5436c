// Invariant: whatever bytes a model file holds, the check before loading gives facts within its limits, or one refusal
// with a line that says why; nothing crashes, hangs or allocates beyond what the file can hold.
// Byte 0: whether tensors are asked for. Knows the check's public header; the file lies in memory.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "llama/gguf_check/gguf_preflight.h"

namespace {

// Not assert: the invariant has to hold in builds without assertions too.
void require(bool holds) {
    if (!holds) std::abort();
}

class MemoryFile {
public:
    MemoryFile(const std::uint8_t* data, std::size_t size) : fd_(memfd_create("fuzz.gguf", MFD_CLOEXEC)) {
        require(fd_ >= 0);
        for (std::size_t written = 0; written < size;) {
            const ssize_t n = write(fd_, data + written, size - written);
            require(n > 0);
            written += static_cast<std::size_t>(n);
        }
    }
    ~MemoryFile() { close(fd_); }
    MemoryFile(const MemoryFile&) = delete;
    MemoryFile& operator=(const MemoryFile&) = delete;

    std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

private:
    int fd_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const MemoryFile file(data + 1, size - 1);
    const luce::Result<luce::llama::GgufFacts> facts = luce::llama::preflight_gguf(file.path(), data[0] % 2 == 0);
    if (facts) {
        require(!facts.value().architecture.empty() && facts.value().files.size() == 1);
    } else {
        require(facts.error().code == luce::ErrorCode::start_failed && !facts.error().text.empty());
        require(facts.error().text.find('\n') == std::string::npos);
    }
    return 0;
}
