// The allocator, and the library as those see it who open it.

#include "kernels/cuda/base/memory.h"
#include "kernels/device.h"

#include <dlfcn.h>

#include <cstring>
#include <limits>

#include "test/kernels/cuda_fixture.h"

namespace pgwarp {
extern "C" OpenDevice pgwarp_open_device;
}

namespace pgwarp::gpu {
namespace {

class CudaDeviceTest : public CudaTest {};

TEST_F(CudaDeviceTest, AllocatorKeepsItsBooks) {
    DeviceMemory memory(size_t{256} << 20);
    std::mt19937 random(test_seed());
    struct Piece {
        Buffer<unsigned char> buffer;
        unsigned char value;
    };
    std::vector<Piece> pieces;
    for (int i = 0; i < 3000; ++i) {
        if (pieces.size() > 40 || (!pieces.empty() && random() % 3 == 0)) {
            const size_t victim = random() % pieces.size();
            // No other allocation was written here.
            const std::vector<unsigned char> bytes = download(pieces[victim].buffer);
            for (unsigned char byte : bytes) ASSERT_EQ(byte, pieces[victim].value);
            pieces.erase(pieces.begin() + victim);
            continue;
        }
        const size_t size = 1 + random() % (random() % 20 == 0 ? 10000000 : 5000);
        Piece piece{{memory, size}, static_cast<unsigned char>(random())};
        check(cudaMemset(piece.buffer.data(), piece.value, size), "cudaMemset");
        pieces.push_back(std::move(piece));
        EXPECT_LE(memory.use().used, memory.use().reserved);
        EXPECT_LE(memory.use().reserved, memory.use().budget);
    }
    pieces.clear();
    EXPECT_EQ(memory.use().used, 0u);
    // All pieces joined again: the largest block fits.
    EXPECT_NO_THROW(Buffer<char>(memory, size_t{250} << 20));
}

TEST_F(CudaDeviceTest, AllocatorRefusesMoreThanItsBudget) {
    DeviceMemory memory(size_t{10} << 20);
    Buffer<char> first(memory, 6 << 20);
    try {
        Buffer<char> second(memory, 6 << 20);
        FAIL() << "more than the budget";
    } catch (const OutOfDeviceMemory& e) {
        EXPECT_EQ(e.wanted, size_t{6} << 20);
        EXPECT_EQ(e.used, size_t{6} << 20);
        EXPECT_EQ(e.budget, size_t{10} << 20);
    }
    EXPECT_NO_THROW(Buffer<char>(memory, 3 << 20));
    EXPECT_THROW(PinnedBuffer<char>(size_t{1} << 50), OutOfHostMemory);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    // And more than the device has.
    DeviceMemory huge(std::numeric_limits<size_t>::max() / 2);
    EXPECT_THROW(Buffer<char>(huge, size_t{1} << 50), OutOfDeviceMemory);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

// What is given back is free for other processes, as the driver counts it.
TEST_F(CudaDeviceTest, AllocatorGivesBackWhatStandsEmpty) {
    const auto free_bytes = [] {
        size_t free = 0, total = 0;
        check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
        return free;
    };
    DeviceMemory memory(size_t{2} << 30);
    Buffer<char> kept(memory, 1000);
    { Buffer<char> large(memory, size_t{1} << 30); }
    const size_t before = free_bytes();
    memory.trim(size_t{1} << 30);
    EXPECT_GE(memory.use().reserved, size_t{1} << 30);
    memory.trim();
    EXPECT_LE(memory.use().reserved, size_t{64} << 20);
    EXPECT_GE(free_bytes(), before + (size_t{900} << 20));
}

// Builds of all processes have one share, and the service leaves it free.
TEST_F(CudaDeviceTest, BuildsHaveAShare) {
    uint64_t taken = 0;
    MemoryCharge charge(taken);
    DeviceOptions wanted = options(0);
    OpenError error;
    const auto budget = [&] {
        const std::unique_ptr<Device> device(pgwarp_open_device(&wanted, &error));
        return device ? device->memory().budget : 0;
    };
    const size_t most = budget();
    wanted.build_share = size_t{1} << 30;
    EXPECT_GT(budget(), most);
    wanted.charge = &charge;
    EXPECT_EQ(budget(), size_t{1} << 30);
    EXPECT_EQ(taken, 0u);
    // Another process has taken most of it.
    taken = (size_t{1} << 30) - (size_t{8} << 20);
    {
        const std::unique_ptr<Device> device(pgwarp_open_device(&wanted, &error));
        ASSERT_NE(device, nullptr) << error.message;
        const auto executor = device->make_executor();
        // Rows that do not fit stay in the caller's memory, and are streamed.
        std::vector<float> rows(size_t{16} << 20);
        const auto dataset = executor->take(rows.data(), rows.size() / 64, 64);
        EXPECT_LE(taken, size_t{1} << 30);
    }
    EXPECT_EQ(taken, (size_t{1} << 30) - (size_t{8} << 20));
}

TEST_F(CudaDeviceTest, LibraryLoadsWorksAndUnloads) {
    for (int round = 0; round < 3; ++round) {
        void* library = dlopen(PGWARP_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
        ASSERT_NE(library, nullptr) << dlerror();
        auto* open = reinterpret_cast<OpenDevice*>(dlsym(library, open_device_symbol));
        ASSERT_NE(open, nullptr);
        OpenError error;
        DeviceOptions wanted = options(size_t{1} << 30);
        {
            const std::unique_ptr<Device> device(open(&wanted, &error));
            ASSERT_NE(device, nullptr) << error.message;
            EXPECT_GT(std::strlen(device->name()), 0u);
            const auto executor = device->make_executor();
            std::vector<float> rows = {0, 0, 1, 1, 5, 5};
            const std::vector<uint64_t> ids = {10, 11, 12};
            std::vector<Neighbor> nearest(2, {std::numeric_limits<float>::infinity(), 0});
            executor->exact_search(
                {rows.data() + 2, 1, rows.data(), 3, ids.data(), 2, Metric::l2, 2, nearest.data()});
            EXPECT_EQ(nearest[0].id, 11u);
            EXPECT_EQ(nearest[1].id, 10u);
            EXPECT_FLOAT_EQ(nearest[1].distance, 2);
        }
        wanted.device = 1000;
        EXPECT_EQ(open(&wanted, &error), nullptr);
        EXPECT_EQ(error.failure, OpenFailure::no_such_device);
        EXPECT_GT(std::strlen(error.message), 0u);
        EXPECT_EQ(dlclose(library), 0);
    }
}

// What a process had on a device is gone when it leaves, and it can come back. (The linked entry,
// not the library's: two runtimes in one process would not know of each other's leaving.)
TEST_F(CudaDeviceTest, LeavesAndComesBack) {
    // What is free after one time is free after the next. Other processes may take or give some
    // meanwhile, but not every time.
    constexpr int max_times = 20;
    size_t before = 0, free = 0;
    int times = 0;
    while (times < max_times && (times < 3 || free != before)) {
        ++times;
        before = free;
        OpenError error;
        DeviceOptions wanted = options(size_t{1} << 30);
        wanted.leave = true;
        {
            const std::unique_ptr<Device> device(pgwarp_open_device(&wanted, &error));
            ASSERT_NE(device, nullptr) << error.message;
            const auto executor = device->make_executor();
            std::mt19937 random(test_seed());
            std::vector<float> rows = normal_floats(random, 5000 * 64);
            std::vector<float> centroids(100 * 64);
            const auto data = executor->take(rows.data(), 5000, 64);
            executor->kmeans_start(*data, 100, 1, centroids.data());
            const double first = executor->kmeans_step(*data, 100, centroids.data());
            EXPECT_LT(executor->kmeans_step(*data, 100, centroids.data()), first);
        }
        size_t total = 0;
        ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    }
    EXPECT_EQ(before, free) << times << " times";
}

}  // namespace
}  // namespace pgwarp::gpu
