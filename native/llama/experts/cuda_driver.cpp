#include "llama/experts/cuda_driver.h"

#include <dlfcn.h>

#include <string>

namespace luce::llama {

Result<CudaDriver> CudaDriver::load() {
    const auto refused = [](const std::string& why) { return Error{ErrorCode::unsupported, "NVIDIA's driver " + why}; };
    void* library = ::dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) return refused("is not here (libcuda.so.1)");
    CudaDriver driver;
    const char* missing = nullptr;
    const auto find = [&](auto& call, const char* name) {
        call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(::dlsym(library, name));
        if (call == nullptr) missing = name;
    };
    find(driver.init, "cuInit");
    find(driver.device_get, "cuDeviceGet");
    find(driver.device_get_attribute, "cuDeviceGetAttribute");
    find(driver.primary_context_retain, "cuDevicePrimaryCtxRetain");
    find(driver.primary_context_release, "cuDevicePrimaryCtxRelease_v2");
    find(driver.context_set_current, "cuCtxSetCurrent");
    find(driver.context_synchronize, "cuCtxSynchronize");
    find(driver.granularity, "cuMemGetAllocationGranularity");
    find(driver.address_reserve, "cuMemAddressReserve");
    find(driver.address_free, "cuMemAddressFree");
    find(driver.create, "cuMemCreate");
    find(driver.release, "cuMemRelease");
    find(driver.map, "cuMemMap");
    find(driver.unmap, "cuMemUnmap");
    find(driver.set_access, "cuMemSetAccess");
    find(driver.to_device, "cuMemcpyHtoD_v2");
    find(driver.to_host, "cuMemcpyDtoH_v2");
    find(driver.fill, "cuMemsetD8_v2");
    if (missing != nullptr) return refused(std::string("has no ") + missing + ": it is too old");
    return driver;
}

}  // namespace luce::llama
