// Processors and memory near a device, in a made-up /sys, and what becomes of a thread there.

#include "kernels/numa.h"

#include <filesystem>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace pgwarp {
namespace {

class Numa : public testing::Test {
  protected:
    std::string root = testing::TempDir() + "/pgwarp_numa_" + std::to_string(getpid());

    void write(const std::string& path, const std::string& text) const {
        const std::filesystem::path file = root + path;
        std::filesystem::create_directories(file.parent_path());
        std::ofstream(file) << text << "\n";
    }
    void TearDown() override { std::filesystem::remove_all(root); }

    static std::vector<int> allowed() {
        cpu_set_t set;
        std::vector<int> processors;
        if (sched_getaffinity(0, sizeof(set), &set) != 0) return processors;
        for (int i = 0; i < CPU_SETSIZE; ++i)
            if (CPU_ISSET(i, &set)) processors.push_back(i);
        return processors;
    }
};

TEST_F(Numa, KnowsWhereADeviceIs) {
    write("/devices/system/node/online", "0-1");
    write("/bus/pci/devices/0000:65:00.0/numa_node", "1");
    write("/bus/pci/devices/0000:66:00.0/numa_node", "-1");
    EXPECT_EQ(node_of_pci("0000:65:00.0", root), 1);
    EXPECT_EQ(node_of_pci("0000:66:00.0", root), -1) << "the machine does not say";
    EXPECT_EQ(node_of_pci("0000:67:00.0", root), -1) << "no such device";
    write("/bus/pci/devices/0000:af:00.0/numa_node", "0");
    EXPECT_EQ(node_of_pci("0000:AF:00.0", root), 0) << "CUDA writes it in capitals";
    write("/devices/system/node/online", "0");
    EXPECT_EQ(node_of_pci("0000:65:00.0", root), -1) << "one node: all is near";
    EXPECT_EQ(node_of_pci("0000:65:00.0", root + "/nowhere"), -1);
}

TEST_F(Numa, KnowsProcessorsOfANode) {
    write("/devices/system/node/node0/cpulist", "0-2,8,10-11");
    write("/devices/system/node/node1/cpulist", "");
    write("/devices/system/node/node2/cpulist", "3-x");
    EXPECT_EQ(processors_of_node(0, root), (std::vector<int>{0, 1, 2, 8, 10, 11}));
    for (const int node : {1, 2, 3}) EXPECT_TRUE(processors_of_node(node, root).empty()) << node;
}

TEST_F(Numa, RunsNear) {
    const std::vector<int> before = allowed();
    ASSERT_FALSE(before.empty());
    write("/devices/system/node/node0/cpulist", std::to_string(before.back()) + ",1023");
    write("/devices/system/node/node1/cpulist", "1023");
    std::vector<int> after, inherited, others;
    bool moved = false, moved_away = true, moved_nowhere = true;
    std::thread([&] {
        moved_away = run_near(1, root);
        moved_nowhere = run_near(-1, root);
        others = allowed();
        moved = run_near(0, root);
        after = allowed();
        std::thread([&] { inherited = allowed(); }).join();
    }).join();
    std::vector<int> kept;
    std::thread([&] {
        {
            const KeptProcessors here;
            run_near(0, root);
        }
        kept = allowed();
    }).join();
    EXPECT_EQ(kept, before);
    EXPECT_FALSE(moved_away) << "none of the node's processors is for this process";
    EXPECT_FALSE(moved_nowhere);
    EXPECT_EQ(others, before);
    EXPECT_TRUE(moved);
    EXPECT_EQ(after, (std::vector<int>{before.back()}));
    EXPECT_EQ(inherited, after);
    EXPECT_EQ(allowed(), before) << "other threads stay where they were";
}

// Whether the system knows nodes or not, the memory is as good as before.
TEST_F(Numa, PlacesMemory) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t bytes = 5 * page;
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    char* first = static_cast<char*>(memory);
    EXPECT_FALSE(place_near(-1, memory, bytes));
    EXPECT_FALSE(place_near(1 << 20, memory, bytes));
    EXPECT_FALSE(place_near(0, first + 1, page)) << "no whole page";
    EXPECT_FALSE(place_near(1000, memory, bytes)) << "no such node";
    // A system without nodes, or a container, may not allow it.
    if (place_near(0, first + 1, bytes - 2)) {
        int policy = -1;
        unsigned long nodes[16] = {};
        constexpr unsigned long of_address = 2;
        ASSERT_EQ(
            syscall(SYS_get_mempolicy, &policy, nodes, 8 * sizeof(nodes), first + page, of_address),
            0);
        EXPECT_EQ(policy, 1) << "preferred";
        EXPECT_EQ(nodes[0], 1u);
    }
    for (size_t i = 0; i < bytes; ++i) first[i] = static_cast<char>(i);
    for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(first[i], static_cast<char>(i));
    munmap(memory, bytes);
}

}  // namespace
}  // namespace pgwarp
