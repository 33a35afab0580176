// Processors and memory near a device, as Linux tells of them in /sys.
//
// Where a machine has one node, or does not say where a device is, nothing here changes anything.
// `sys` is the root of that file system, for tests.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <sched.h>

namespace pgwarp {

// The node of a PCI device such as "0000:65:00.0", in any case; -1: unknown, or there is one node.
int node_of_pci(const std::string& bus_id, const std::string& sys = "/sys");

// The processors of a node, ascending; none: unknown.
std::vector<int> processors_of_node(int node, const std::string& sys = "/sys");

// Lets the calling thread, and threads that it starts, run on processors of the node only: on those
// of them that it may run on now. False: nothing has changed.
bool run_near(int node, const std::string& sys = "/sys") noexcept;

// Undoes, at its end, what run_near() did in this thread since.
class KeptProcessors {
  public:
    KeptProcessors() noexcept;
    ~KeptProcessors();
    KeptProcessors(const KeptProcessors&) = delete;
    KeptProcessors& operator=(const KeptProcessors&) = delete;

  private:
    cpu_set_t before_;
    bool known_;
};

// Asks for the node's memory for whole pages of this range that are still untouched; the system
// takes others where the node has none. False: nothing has changed.
bool place_near(int node, void* memory, size_t bytes) noexcept;

}  // namespace pgwarp
