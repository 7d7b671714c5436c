// SplitMemory of a CUDA device: physical memory of the GPU and of the host, mapped into ranges of addresses by the
// driver. It must not know what lies in it.
#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llama/experts/cuda_driver.h"
#include "llama/experts/split_memory.h"

namespace luce::llama {
namespace {

// Several copies of the same range may be asked for on any thread, so each call makes the context current.
class CudaSplitMemory final : public SplitMemory {
public:
    CudaSplitMemory(CudaDriver driver, int device, void* context, int numa_node, std::size_t granularity)
        : driver_(driver), device_(device), context_(context), numa_node_(numa_node), granularity_(granularity) {}
    CudaSplitMemory(const CudaSplitMemory&) = delete;
    CudaSplitMemory& operator=(const CudaSplitMemory&) = delete;

    ~CudaSplitMemory() override {
        driver_.context_set_current(context_);
        for (const auto& [at, part] : parts_) driver_.unmap(at, part.n_bytes);
        for (const Allocated& block : blocks_) driver_.release(block.handle);
        for (const auto& [begin, n_bytes] : ranges_) driver_.address_free(begin, n_bytes);
        driver_.primary_context_release(device_);
    }

    std::size_t granularity() const override { return granularity_; }

    Result<std::byte*> reserve(std::size_t n_bytes) override {
        driver_.context_set_current(context_);
        n_bytes = (n_bytes + granularity_ - 1) / granularity_ * granularity_;
        CudaDriver::Pointer begin = 0;
        if (const int status = driver_.address_reserve(&begin, n_bytes, granularity_, 0, 0); status != 0) {
            return refused("gives no addresses for " + std::to_string(n_bytes >> 20) + " MiB", status);
        }
        ranges_.emplace_back(begin, n_bytes);
        return reinterpret_cast<std::byte*>(begin);  // NOLINT(performance-no-int-to-ptr): CUDA has addresses as numbers
    }

    Result<Block> allocate(std::size_t n_bytes, bool on_device) override {
        driver_.context_set_current(context_);
        CudaDriver::AllocationProperties properties;
        properties.location = location(on_device);
        Allocated block{.n_bytes = n_bytes, .on_device = on_device};
        if (const int status = driver_.create(&block.handle, n_bytes, &properties, 0); status != 0) {
            const char* whose = on_device ? "of the GPU's memory" : "of the host's memory, that a GPU can read";
            return refused("has no " + std::to_string(n_bytes >> 20) + " MiB " + whose, status);
        }
        blocks_.push_back(block);
        return blocks_.size() - 1;
    }

    Result<void> map(std::byte* to, Block index) override {
        driver_.context_set_current(context_);
        Allocated& block = blocks_[index];
        const auto at = reinterpret_cast<CudaDriver::Pointer>(to);
        if (const int status = driver_.map(at, block.n_bytes, 0, block.handle, 0); status != 0) {
            return refused("maps nothing", status);
        }
        const CudaDriver::Access access[] = {{location(true)}, {location(false)}};
        const std::size_t n_readers = block.on_device ? 1 : 2;
        if (const int status = driver_.set_access(at, block.n_bytes, access, n_readers); status != 0) {
            driver_.unmap(at, block.n_bytes);
            return refused("gives no access to what it has mapped", status);
        }
        parts_[at] = {block.n_bytes, block.on_device};
        if (!std::exchange(block.is_cleared, true)) clear(to, block.n_bytes);
        return {};
    }

    void unmap(std::byte* from) override {
        driver_.context_set_current(context_);
        const auto at = reinterpret_cast<CudaDriver::Pointer>(from);
        driver_.unmap(at, parts_.at(at).n_bytes);
        parts_.erase(at);
    }

    void wait() override {
        driver_.context_set_current(context_);
        driver_.context_synchronize();
    }

    bool clear(std::byte* begin, std::size_t n_bytes) override {
        const bool done = in_pieces(begin, n_bytes, [&](std::byte* at, std::size_t, std::size_t n, bool on_device) {
            if (on_device) return driver_.fill(reinterpret_cast<CudaDriver::Pointer>(at), 0, n) == 0;
            std::memset(at, 0, n);
            return true;
        });
        return done && driver_.context_synchronize() == 0;  // filling does not wait
    }

    bool write(std::byte* to, const void* from, std::size_t n_bytes) override {
        return in_pieces(to, n_bytes, [&](std::byte* at, std::size_t done, std::size_t n, bool on_device) {
            const auto* source = static_cast<const std::byte*>(from) + done;
            if (on_device) return driver_.to_device(reinterpret_cast<CudaDriver::Pointer>(at), source, n) == 0;
            std::memcpy(at, source, n);
            return true;
        });
    }

    bool read(void* to, const std::byte* from, std::size_t n_bytes) override {
        return in_pieces(const_cast<std::byte*>(from), n_bytes,
                         [&](std::byte* at, std::size_t done, std::size_t n, bool on_device) {
                             std::byte* target = static_cast<std::byte*>(to) + done;
                             if (on_device)
                                 return driver_.to_host(target, reinterpret_cast<CudaDriver::Pointer>(at), n) == 0;
                             std::memcpy(target, at, n);
                             return true;
                         });
    }

private:
    struct Allocated {
        CudaDriver::Handle handle = 0;
        std::size_t n_bytes = 0;
        bool on_device = false;
        bool is_cleared = false;
    };

    struct Part {
        std::size_t n_bytes = 0;
        bool on_device = false;
    };

    CudaDriver::Location location(bool on_device) const {
        return on_device ? CudaDriver::Location{CudaDriver::kDevice, device_}
                         : CudaDriver::Location{CudaDriver::kHostNuma, numa_node_};
    }

    static Error refused(const std::string& what, int status) {
        return {ErrorCode::out_of_memory, "the driver " + what + " (error " + std::to_string(status) + ")"};
    }

    // One copy may not cross from one kind of memory into the other.
    template <typename Copy>
    bool in_pieces(std::byte* begin, std::size_t n_bytes, const Copy& copy) {
        driver_.context_set_current(context_);
        const auto first = reinterpret_cast<CudaDriver::Pointer>(begin);
        const CudaDriver::Pointer end = first + n_bytes;
        auto at = parts_.upper_bound(first);
        if (at != parts_.begin()) --at;
        for (; at != parts_.end() && at->first < end; ++at) {
            const CudaDriver::Pointer from = std::max(first, at->first);
            const CudaDriver::Pointer to = std::min(end, at->first + at->second.n_bytes);
            if (from >= to) continue;
            if (!copy(begin + (from - first), from - first, to - from, at->second.on_device)) return false;
        }
        return true;
    }

    CudaDriver driver_;
    int device_;
    void* context_;
    int numa_node_;
    std::size_t granularity_;
    std::vector<std::pair<CudaDriver::Pointer, std::size_t>> ranges_;
    std::vector<Allocated> blocks_;
    std::map<CudaDriver::Pointer, Part> parts_;  // by their addresses
};

}  // namespace

Result<std::unique_ptr<SplitMemory>> open_cuda_memory(ggml_backend_dev_t device) {
    const auto refused = [](const std::string& why) { return Error{ErrorCode::unsupported, why}; };
    const std::string_view name = ggml_backend_dev_name(device);
    constexpr std::string_view kPrefix = "CUDA";
    if (name.substr(0, kPrefix.size()) != kPrefix) return refused(std::string(name) + " is no CUDA device");
    const Result<CudaDriver> loaded = CudaDriver::load();
    if (!loaded) return loaded.error();
    const CudaDriver& driver = loaded.value();
    int cuda_device = 0, numa_node = 0;
    int ordinal = 0;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), ordinal);
    if (driver.init(0) != 0 || driver.device_get(&cuda_device, ordinal) != 0)
        return refused("the driver has no " + std::string(name));
    driver.device_get_attribute(&numa_node, CudaDriver::kHostNumaNode, cuda_device);
    CudaDriver::AllocationProperties properties;
    properties.location = {CudaDriver::kDevice, cuda_device};
    std::size_t granularity = 0;
    if (driver.granularity(&granularity, &properties, 0) != 0 || granularity == 0) {
        return refused("the driver does not say how large its memory's pages are");
    }
    void* context = nullptr;
    if (driver.primary_context_retain(&context, cuda_device) != 0) return refused("the driver gives no context");
    driver.context_set_current(context);
    properties.location = {CudaDriver::kHostNuma, std::max(numa_node, 0)};
    CudaDriver::Handle handle = 0;
    if (driver.create(&handle, granularity, &properties, 0) != 0) {
        driver.primary_context_release(cuda_device);
        return refused("the driver maps no host memory beside the GPU's (CUDA 12.2, Linux)");
    }
    driver.release(handle);
    return std::unique_ptr<SplitMemory>(
        std::make_unique<CudaSplitMemory>(driver, cuda_device, context, std::max(numa_node, 0), granularity));
}

}  // namespace luce::llama
