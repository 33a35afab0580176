// Blocks cut from segments, with memory of the host in a device's place.

#include "kernels/cuda/base/segments.h"
#include "test/kernels/seed.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <stdexcept>
#include <vector>

namespace pgwarp::gpu {
namespace {

constexpr size_t mega = size_t{1} << 20;

struct HostSegments final : SegmentSource {
    size_t room = 1000 * mega;  // of the device
    size_t taken = 0;
    int failing = 0;  // calls that throw
    std::map<void*, size_t> segments;

    void* take_segment(size_t bytes) override {
        if (failing > 0) {
            --failing;
            throw std::runtime_error("on purpose");
        }
        if (taken + bytes > room) return nullptr;
        // Never touched but for a few bytes: what is not written takes no memory.
        void* segment = std::aligned_alloc(4096, bytes / 4096 * 4096 + 4096);
        segments[segment] = bytes;
        taken += bytes;
        return segment;
    }
    void give_segment(void* segment) noexcept override {
        taken -= segments.at(segment);
        segments.erase(segment);
        std::free(segment);
    }
};

TEST(Segments, KeepsItsBooks) {
    HostSegments source;
    std::mt19937 random(test_seed());
    uint64_t shared = 0;
    MemoryCharge charge(shared);
    {
        SegmentPool pool(source, 512 * mega, &charge);
        struct Piece {
            unsigned char* data;
            size_t size;
            unsigned char value;
        };
        std::vector<Piece> pieces;
        for (int i = 0; i < 3000; ++i) {
            if (random() % 50 == 0) pool.trim(random() % (256 * mega));
            if (pieces.size() > 40 || (!pieces.empty() && random() % 3 == 0)) {
                const size_t victim = random() % pieces.size();
                const Piece piece = pieces[victim];
                // Nothing else has written here.
                ASSERT_EQ(piece.data[0], piece.value);
                ASSERT_EQ(piece.data[piece.size - 1], piece.value);
                pool.free(piece.data);
                pieces.erase(pieces.begin() + static_cast<ptrdiff_t>(victim));
            } else {
                const size_t size = 1 + random() % (random() % 20 == 0 ? 10000000 : 5000);
                Piece piece{static_cast<unsigned char*>(pool.allocate(size)), size,
                            static_cast<unsigned char>(random())};
                piece.data[0] = piece.data[size - 1] = piece.value;
                pieces.push_back(piece);
            }
            const DeviceMemoryUse use = pool.use();
            ASSERT_LE(use.used, use.reserved - use.empty);
            ASSERT_LE(use.reserved, use.budget);
            ASSERT_EQ(use.reserved, source.taken);
            ASSERT_EQ(use.reserved, shared);
        }
        for (const Piece& piece : pieces) pool.free(piece.data);
        EXPECT_EQ(pool.use().used, 0u);
        EXPECT_EQ(pool.use().empty, pool.use().reserved);
        pool.trim();
        EXPECT_EQ(pool.use().reserved, 0u);
        EXPECT_EQ(source.taken, 0u);
        EXPECT_EQ(pool.use().empty, 0u);
        EXPECT_NE(pool.allocate(1), nullptr);
    }
    EXPECT_EQ(source.taken, 0u);
    EXPECT_EQ(shared, 0u);
}

TEST(Segments, KeepsSomeThatStandEmpty) {
    HostSegments source;
    SegmentPool pool(source, 1000 * mega);
    std::vector<void*> blocks;
    for (int i = 0; i < 8; ++i) blocks.push_back(pool.allocate(40 * mega));
    EXPECT_EQ(pool.use().reserved, 8 * 64 * mega);
    EXPECT_EQ(pool.use().empty, 0u);
    pool.trim();
    EXPECT_EQ(pool.use().reserved, 8 * 64 * mega) << "what is in use stays";
    for (int i = 0; i < 6; ++i) pool.free(blocks[static_cast<size_t>(i)]);
    EXPECT_EQ(pool.use().empty, 6 * 64 * mega);
    pool.trim(128 * mega);
    EXPECT_EQ(pool.use().empty, 128 * mega);
    EXPECT_EQ(source.taken, 4 * 64 * mega);
    pool.trim();
    EXPECT_EQ(pool.use().reserved, 2 * 64 * mega);
}

TEST(Segments, OneShareForAll) {
    HostSegments source;
    uint64_t shared = 0;
    MemoryCharge ours(shared), theirs(shared);
    SegmentPool mine(source, 200 * mega, &ours), other(source, 200 * mega, &theirs);
    void* block = mine.allocate(100 * mega);
    EXPECT_EQ(mine.available(), 100 * mega);
    EXPECT_EQ(other.available(), 100 * mega);
    try {
        other.allocate(120 * mega);
        FAIL() << "more than the share";
    } catch (const OutOfDeviceMemory& e) {
        EXPECT_EQ(e.wanted, 120 * mega);
        EXPECT_EQ(e.used, 100 * mega);
        EXPECT_EQ(e.budget, 200 * mega);
    }
    void* small = other.allocate(90 * mega);
    EXPECT_NE(small, nullptr);
    // A segment no larger than what is left.
    void* rest = other.allocate(mega);
    EXPECT_LE(shared, 200 * mega);
    mine.free(block);
    EXPECT_THROW(other.allocate(120 * mega), OutOfDeviceMemory) << "the other pool still has it";
    mine.trim();
    EXPECT_NE(other.allocate(100 * mega), nullptr);
    other.free(rest);
    // The end of a process, with blocks in use: what its pool gives afterwards counts no more.
    theirs.give_all();
    EXPECT_EQ(shared, 0u);
    other.free(small);
    other.trim();
    EXPECT_EQ(shared, 0u);
    EXPECT_TRUE(ours.take(200 * mega, 200 * mega));
    EXPECT_FALSE(ours.take(1, 200 * mega));
    ours.give(200 * mega);
    EXPECT_EQ(shared, 0u);
}

TEST(Segments, NothingIsChargedForWhatWasNotTaken) {
    HostSegments source;
    uint64_t shared = 0;
    MemoryCharge charge(shared);
    SegmentPool pool(source, 1000 * mega, &charge);
    source.room = 10 * mega;
    EXPECT_THROW(pool.allocate(20 * mega), OutOfDeviceMemory);
    source.failing = 1;
    EXPECT_THROW(pool.allocate(mega), std::runtime_error);
    EXPECT_EQ(shared, 0u);
    EXPECT_EQ(pool.use().reserved, 0u);
}

}  // namespace
}  // namespace pgwarp::gpu
