// All settings (GUCs) of pgwarp.
#pragma once

namespace pgwarp {

enum class IterativeScan : int { off, relaxed_order, strict_order };

enum class ExecutorChoice : int { automatic, cpu, service };

enum class BuildExecutorChoice : int { automatic, cpu, gpu };

// Which devices of the service have an index: as many as it needs, one, all, a part of it each.
enum class Placement : int { automatic, single, replicate, shard };

struct Settings {
    // Of the session:
    int probes;      // 0: from the recall curve
    int candidates;  // 0: from the recall curve
    double target_recall;
    int iterative_scan;   // IterativeScan
    int max_probes;       // 0: no bound
    int max_scan_tuples;  // 0: no bound
    bool enable_batched_join;
    int audit_every;      // searches, one of which is audited; 0: none
    int executor;         // ExecutorChoice
    int service_timeout;  // milliseconds
    int build_executor;   // BuildExecutorChoice
    bool own_types;       // of CREATE EXTENSION, though pgvector is there

    // Of the server:
    char* devices;
    int placement;      // Placement, of indexes that have no option of their own
    int device_memory;  // MB; 0: most of it
    int build_memory;   // MB, for builds of all sessions together; 0: a quarter of the device
    int max_searches;
    int watchdog_timeout;  // milliseconds; 0: none

    // For tests:
    bool refine;            // scans use refinement codes, where an index has them
    int statistics_places;  // indexes that have statistics
    int fault;              // Fault
    int fault_device;       // place of the device that has the fault; -1: all
    int fault_after;        // device calls of a build that succeed before the fault
    char* pause;            // where to pause (util/pause.h)
    int pause_after;        // passes of that point before it pauses
};
extern Settings settings;

void define_settings();

// Parses the device list of pgwarp.devices, at most most_devices numbers. Returns their count; 0
// where the text is not such a list. The host is number host_device. A number that is there twice
// makes two devices of one, which share its memory: for tests.
inline constexpr int most_devices = 16;
inline constexpr int host_device = -1;
int parse_devices(const char* text, int* numbers);
// Whether pgwarp.devices names the host, whose CPU then acts as the devices.
bool devices_are_hosts();

}  // namespace pgwarp
