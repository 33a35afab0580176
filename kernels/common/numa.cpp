#include "kernels/numa.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <fstream>
#include <sstream>

#include <sys/syscall.h>
#include <unistd.h>

namespace pgwarp {

namespace {

// Numbers and ranges, "0-3,8". None where the text is anything else.
std::vector<int> parse_numbers(const std::string& text) {
    constexpr int most = 1 << 16;
    std::vector<int> numbers;
    std::istringstream parts(text);
    for (std::string part; std::getline(parts, part, ',');) {
        std::istringstream in(part);
        int first = 0, last = 0;
        char dash = 0;
        if (!(in >> first)) return {};
        last = first;
        if (in >> dash && (dash != '-' || !(in >> last))) return {};
        if (first < 0 || last < first || last > most) return {};
        for (int number = first; number <= last; ++number) numbers.push_back(number);
    }
    std::sort(numbers.begin(), numbers.end());
    return numbers;
}

// The first line of a file; empty where there is none.
std::string line_of(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

}  // namespace

int node_of_pci(const std::string& bus_id, const std::string& sys) {
    if (parse_numbers(line_of(sys + "/devices/system/node/online")).size() < 2) return -1;
    std::string name = bus_id;
    for (char& letter : name)
        letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    const std::vector<int> node =
        parse_numbers(line_of(sys + "/bus/pci/devices/" + name + "/numa_node"));
    return node.size() == 1 ? node[0] : -1;
}

std::vector<int> processors_of_node(int node, const std::string& sys) {
    return parse_numbers(
        line_of(sys + "/devices/system/node/node" + std::to_string(node) + "/cpulist"));
}

bool run_near(int node, const std::string& sys) noexcept {
    if (node < 0) return false;
    try {
        cpu_set_t allowed, near;
        if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return false;
        CPU_ZERO(&near);
        for (const int processor : processors_of_node(node, sys))
            if (processor < CPU_SETSIZE && CPU_ISSET(processor, &allowed))
                CPU_SET(processor, &near);
        return CPU_COUNT(&near) > 0 && sched_setaffinity(0, sizeof(near), &near) == 0;
    } catch (...) {
        return false;  // no memory for the names of files
    }
}

KeptProcessors::KeptProcessors() noexcept
    : known_(sched_getaffinity(0, sizeof(before_), &before_) == 0) {}

KeptProcessors::~KeptProcessors() {
    if (known_) sched_setaffinity(0, sizeof(before_), &before_);
}

bool place_near(int node, void* memory, size_t bytes) noexcept {
#ifdef SYS_mbind
    // As numaif.h has them, which is part of a library that is needed for nothing else.
    constexpr int preferred = 1;
    constexpr size_t bits = 8 * sizeof(unsigned long), most_nodes = 1024;
    if (node < 0 || static_cast<size_t>(node) >= most_nodes) return false;
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto begin = (reinterpret_cast<uintptr_t>(memory) + page - 1) / page * page;
    const auto end = (reinterpret_cast<uintptr_t>(memory) + bytes) / page * page;
    if (begin >= end) return false;
    unsigned long nodes[most_nodes / bits] = {};
    nodes[static_cast<size_t>(node) / bits] |= 1UL << (static_cast<size_t>(node) % bits);
    return syscall(SYS_mbind, begin, end - begin, preferred, nodes, most_nodes + 1, 0) == 0;
#else
    static_cast<void>(node), static_cast<void>(memory), static_cast<void>(bytes);
    return false;
#endif
}

}  // namespace pgwarp
