// Shared by the tests of CUDA kernels, which are skipped without a device.
#pragma once

#include "kernels/cuda/base/context.h"
#include "kernels/cuda/products/products.h"
#include "kernels/cuda/base/stream.h"

#include <random>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/seed.h"
#include "kernels/device.h"

namespace pgwarp::gpu {

// PGWARP_TEST_SMALL selects smaller shapes, for tools that check every memory access.
inline bool small_tests() {
    return std::getenv("PGWARP_TEST_SMALL") != nullptr;
}

class CudaTest : public testing::Test {
  protected:
    void SetUp() override {
        int devices = 0;
        if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
            cudaGetLastError();
            GTEST_SKIP() << "no device";
        }
        clear_products_first = small_tests();
        multiply_ourselves = std::getenv("PGWARP_TEST_OWN_PRODUCTS") != nullptr;
    }

    static DeviceOptions options(size_t memory = size_t{4} << 30, size_t scratch = 0) {
        DeviceOptions wanted;
        wanted.memory_budget = memory;
        wanted.scratch_budget = scratch;
        return wanted;
    }

    // Copies and fills on the default stream may return before they are done, and our streams do
    // not wait for that stream.
    static void finish_default_stream() {
        check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
    }

    // Copies small vectors to the device and back.
    template <typename T>
    static Buffer<T> upload(const Context& context, const std::vector<T>& from) {
        Buffer<T> to(context.memory, from.size());
        check(cudaMemcpy(to.data(), from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice),
              "cudaMemcpy");
        finish_default_stream();
        return to;
    }
    template <typename T>
    static std::vector<T> download(const Buffer<T>& from) {
        std::vector<T> to(from.size());
        check(cudaMemcpy(to.data(), from.data(), to.size() * sizeof(T), cudaMemcpyDeviceToHost),
              "cudaMemcpy");
        return to;
    }

    static std::vector<float> normal_floats(std::mt19937& random, size_t count, float scale = 1) {
        std::normal_distribution<float> normal(0, scale);
        std::vector<float> values(count);
        for (float& value : values) value = normal(random);
        return values;
    }
};

}  // namespace pgwarp::gpu
