#include <climits>
#include <cstdlib>
#include <cstring>

#include "kernels/failing_device.h"
#include "extension/settings.h"
#include "extension/compat.h"
#include "extension/limits.h"

extern "C" {
#include "miscadmin.h"
#include "utils/guc.h"
}

namespace pgwarp {

Settings settings = {
    .probes = 0,
    .candidates = 0,
    .target_recall = 0.95,
    .iterative_scan = static_cast<int>(IterativeScan::relaxed_order),
    .max_probes = 0,
    .max_scan_tuples = 0,
    .enable_batched_join = true,
    .audit_every = 1000,
    .executor = static_cast<int>(ExecutorChoice::automatic),
    .service_timeout = 2000,
    .build_executor = static_cast<int>(BuildExecutorChoice::automatic),
    .own_types = false,
    .devices = nullptr,
    .placement = static_cast<int>(Placement::automatic),
    .device_memory = 0,
    .build_memory = 0,
    .max_searches = 256,
    .watchdog_timeout = 30000,
    .refine = true,
    .statistics_places = 1024,
    .fault = static_cast<int>(Fault::none),
    .fault_device = -1,
    .fault_after = 0,
    .pause = nullptr,
    .pause_after = 0,
};

namespace {

const config_enum_entry iterative_scan_options[] = {
    {"off", static_cast<int>(IterativeScan::off), false},
    {"relaxed_order", static_cast<int>(IterativeScan::relaxed_order), false},
    {"strict_order", static_cast<int>(IterativeScan::strict_order), false},
    {nullptr, 0, false},
};

const config_enum_entry executor_options[] = {
    {"auto", static_cast<int>(ExecutorChoice::automatic), false},
    {"cpu", static_cast<int>(ExecutorChoice::cpu), false},
    {"service", static_cast<int>(ExecutorChoice::service), false},
    {nullptr, 0, false},
};

const config_enum_entry build_executor_options[] = {
    {"auto", static_cast<int>(BuildExecutorChoice::automatic), false},
    {"cpu", static_cast<int>(BuildExecutorChoice::cpu), false},
    {"gpu", static_cast<int>(BuildExecutorChoice::gpu), false},
    {nullptr, 0, false},
};

const config_enum_entry placement_options[] = {
    {"auto", static_cast<int>(Placement::automatic), false},
    {"single", static_cast<int>(Placement::single), false},
    {"replicate", static_cast<int>(Placement::replicate), false},
    {"shard", static_cast<int>(Placement::shard), false},
    {nullptr, 0, false},
};

const config_enum_entry fault_options[] = {
    {"none", static_cast<int>(Fault::none), false},
    {"failed", static_cast<int>(Fault::failed), false},
    {"lost", static_cast<int>(Fault::lost), false},
    {"out_of_memory", static_cast<int>(Fault::out_of_memory), false},
    {"unknown", static_cast<int>(Fault::unknown), false},
    {"late", static_cast<int>(Fault::late), false},
    {"slow", static_cast<int>(Fault::slow), false},
    {"hung", static_cast<int>(Fault::hung), false},
    {"slow_put", static_cast<int>(Fault::slow_put), false},
    {"no_host_memory", static_cast<int>(Fault::no_host_memory), false},
    {"slow_large", static_cast<int>(Fault::slow_large), false},
    {nullptr, 0, false},
};

bool check_devices(char** value, void**, GucSource) {
    const char* text = *value;
    if (strcmp(text, "auto") == 0 || strcmp(text, "none") == 0) return true;
    int numbers[most_devices];
    if (parse_devices(text, numbers) > 0) return true;
    GUC_check_errdetail(
        "It is 'auto', 'none', 'host', or up to %d numbers of devices such as '0,1'.",
        most_devices);
    return false;
}

// PGC_POSTMASTER settings can be defined at server start only. In a session that loads the library
// later they have no effect, and are defined for SHOW.
GucContext start_context() {
    return process_shared_preload_libraries_in_progress ? PGC_POSTMASTER : PGC_SIGHUP;
}

void define_service_settings() {
    const GucContext at_start = start_context();
    DefineCustomEnumVariable(
        "ivfpq.executor", "Sets who searches the lists of an index.",
        "cpu reads the index pages in the session's own process; service asks the pgwarp service, "
        "and fails where there is none; auto asks it where it serves.",
        &settings.executor, settings.executor, executor_options, PGC_USERSET, 0, nullptr, nullptr,
        nullptr);
    DefineCustomIntVariable(
        "pgwarp.service_timeout", "Sets how long a scan waits for the pgwarp service.",
        "After that it reads the index pages itself.", &settings.service_timeout,
        settings.service_timeout, 1, INT_MAX, PGC_USERSET, GUC_UNIT_MS, nullptr, nullptr, nullptr);
    DefineCustomEnumVariable(
        "pgwarp.build_executor", "Sets where CREATE INDEX trains and encodes.",
        "cpu: in the processes of the build; gpu: on a device of pgwarp.devices, failing where "
        "there "
        "is none; auto: on a device where there is one and the table is large enough.",
        &settings.build_executor, settings.build_executor, build_executor_options, PGC_USERSET, 0,
        nullptr, nullptr, nullptr);
    DefineCustomBoolVariable(
        "pgwarp.own_types", "Makes CREATE EXTENSION pgwarp create types of its own.",
        "Without it, pgwarp uses the types of pgvector in a database that has pgvector.",
        &settings.own_types, false, PGC_USERSET, 0, nullptr, nullptr, nullptr);
    DefineCustomStringVariable(
        "pgwarp.devices", "Sets the devices that keep and search lists of indexes.",
        "auto: all GPUs there are; none: no service; host: the CPU in a device's place; or numbers "
        "of GPUs, such as 0,1.",
        &settings.devices, "auto", at_start, 0, check_devices, nullptr, nullptr);
    DefineCustomEnumVariable(
        "pgwarp.placement", "Sets which of several devices have an index.",
        "single: one of them; replicate: all, and a search asks the least busy; shard: a part of "
        "its lists each, and a search asks all; auto: one, more where it is small and much "
        "searched, a part each where it is larger than one. The option placement of an index "
        "overrides it.",
        &settings.placement, settings.placement, placement_options, PGC_SIGHUP, 0, nullptr, nullptr,
        nullptr);
    DefineCustomIntVariable("pgwarp.device_memory",
                            "Sets how much memory of each device the service may use.",
                            "0 means most of it, but for pgwarp.build_memory (of the host: 1 GB). "
                            "A GPU that pgwarp.devices names twice counts as two devices.",
                            &settings.device_memory, settings.device_memory, 0, INT_MAX, at_start,
                            GUC_UNIT_MB, nullptr, nullptr, nullptr);
    DefineCustomIntVariable(
        "pgwarp.build_memory",
        "Sets how much memory of a device builds, clusterings, joins and graphs may use.",
        "All sessions together; where more is needed, the CPU does the work. 0 means a quarter of "
        "the device (of the host: 1 GB). The service leaves it free where pgwarp.device_memory is "
        "0.",
        &settings.build_memory, settings.build_memory, 0, INT_MAX, PGC_SUSET, GUC_UNIT_MB, nullptr,
        nullptr, nullptr);
    DefineCustomIntVariable("pgwarp.max_searches",
                            "Sets how many searches may be under way in the service.",
                            "Further ones are done by the sessions themselves. Each takes about "
                            "150 kB of shared memory.",
                            &settings.max_searches, settings.max_searches, 1, 100000, at_start, 0,
                            nullptr, nullptr, nullptr);
    DefineCustomIntVariable(
        "pgwarp.watchdog_timeout",
        "Sets after how long in one call of a device the service is ended and started again.",
        "0 never ends it. Opening the devices may take ten times as long.",
        &settings.watchdog_timeout, settings.watchdog_timeout, 0, INT_MAX / 10, PGC_SIGHUP,
        GUC_UNIT_MS, nullptr, nullptr, nullptr);
}

void define_test_settings() {
    const GucContext at_start = start_context();
    DefineCustomBoolVariable("pgwarp.debug_refine",
                             "Ranks candidates by the finer codes of an index that has them.",
                             "Off, a scan visits the rows of all candidates. For tests of pgwarp.",
                             &settings.refine, settings.refine, PGC_USERSET,
                             GUC_NOT_IN_SAMPLE | GUC_NO_SHOW_ALL, nullptr, nullptr, nullptr);
    DefineCustomIntVariable("pgwarp.debug_statistics_places",
                            "Sets for how many indexes there are statistics.",
                            "For tests of pgwarp.", &settings.statistics_places,
                            settings.statistics_places, 1, settings.statistics_places, at_start,
                            GUC_NOT_IN_SAMPLE | GUC_NO_SHOW_ALL, nullptr, nullptr, nullptr);
    DefineCustomEnumVariable("pgwarp.debug_fault", "Makes the devices of the service fail.",
                             "For tests of pgwarp.", &settings.fault, settings.fault, fault_options,
                             PGC_SIGHUP, GUC_NOT_IN_SAMPLE | GUC_NO_SHOW_ALL, nullptr, nullptr,
                             nullptr);
    DefineCustomIntVariable("pgwarp.debug_fault_device", "Sets which device has the fault.",
                            "-1 means all of them. For tests of pgwarp.", &settings.fault_device,
                            settings.fault_device, -1, most_devices - 1, PGC_SIGHUP,
                            GUC_NOT_IN_SAMPLE | GUC_NO_SHOW_ALL, nullptr, nullptr, nullptr);
    DefineCustomIntVariable("pgwarp.debug_fault_after",
                            "Sets how many calls of a build go well before the device fails.",
                            "For tests of pgwarp.", &settings.fault_after, settings.fault_after, 0,
                            INT_MAX, PGC_SUSET, GUC_NOT_IN_SAMPLE | GUC_NO_SHOW_ALL, nullptr,
                            nullptr, nullptr);
    DefineCustomStringVariable("pgwarp.debug_pause",
                               "Names the point at which this session waits for an advisory lock.",
                               "For tests of pgwarp.", &settings.pause, "", PGC_SUSET,
                               GUC_NOT_IN_SAMPLE | GUC_NO_SHOW_ALL, nullptr, nullptr, nullptr);
    DefineCustomIntVariable("pgwarp.debug_pause_after",
                            "Sets how often a session passes the point before it waits there.",
                            "For tests of pgwarp.", &settings.pause_after, settings.pause_after, 0,
                            INT_MAX, PGC_SUSET, GUC_NOT_IN_SAMPLE | GUC_NO_SHOW_ALL, nullptr,
                            nullptr, nullptr);
}

}  // namespace

int parse_devices(const char* text, int* numbers) {
    constexpr char host[] = "host";
    constexpr size_t host_length = sizeof(host) - 1;
    int count = 0;
    while (true) {
        char* end;
        long number = strtol(text, &end, 10);
        if (strncmp(text, host, host_length) == 0) {
            number = host_device;
            end = const_cast<char*>(text) + host_length;
        } else if (end == text || number < 0 || number > 1000) {
            return 0;
        }
        // Hosts and GPUs do not mix: devices_are_hosts() has one answer for all devices.
        if (count == most_devices || (count > 0 && (number < 0) != (numbers[0] < 0))) return 0;
        numbers[count++] = static_cast<int>(number);
        if (*end == '\0') return count;
        if (*end != ',') return 0;
        text = end + 1;
    }
}

bool devices_are_hosts() {
    int numbers[most_devices];
    return parse_devices(settings.devices, numbers) > 0 && numbers[0] == host_device;
}

void define_settings() {
    DefineCustomIntVariable("ivfpq.probes", "Sets how many lists a scan looks into first.",
                            "0 lets the index choose from its recall curve and "
                            "ivfpq.target_recall.",
                            &settings.probes, settings.probes, 0, max_lists, PGC_USERSET, 0,
                            nullptr, nullptr, nullptr);
    DefineCustomIntVariable("ivfpq.candidates",
                            "Sets how many rows a scan first ranks by exact distance.",
                            "0 lets the index choose from its recall curve and "
                            "ivfpq.target_recall.",
                            &settings.candidates, settings.candidates, 0, max_candidates,
                            PGC_USERSET, 0, nullptr, nullptr, nullptr);
    DefineCustomRealVariable(
        "ivfpq.target_recall", "Sets the share of true neighbors a scan aims to find.",
        "1 is an exact search, which reads all rows.", &settings.target_recall,
        settings.target_recall, 0.0, 1.0, PGC_USERSET, 0, nullptr, nullptr, nullptr);
    DefineCustomEnumVariable(
        "ivfpq.iterative_scan", "Sets how a scan goes on when more rows are wanted.",
        "relaxed_order goes on in rounds, each in exact order; strict_order leaves out rows that "
        "would come out of order; off ends after the first round.",
        &settings.iterative_scan, settings.iterative_scan, iterative_scan_options, PGC_USERSET, 0,
        nullptr, nullptr, nullptr);
    DefineCustomIntVariable("ivfpq.max_probes", "Sets how many lists a scan looks into at most.",
                            "0 means no bound.", &settings.max_probes, settings.max_probes, 0,
                            max_lists, PGC_USERSET, 0, nullptr, nullptr, nullptr);
    DefineCustomIntVariable(
        "ivfpq.max_scan_tuples", "Sets after how many rows a scan begins no further round.",
        "0 means no bound.", &settings.max_scan_tuples, settings.max_scan_tuples, 0, INT_MAX,
        PGC_USERSET, 0, nullptr, nullptr, nullptr);
    DefineCustomBoolVariable(
        "ivfpq.enable_batched_join",
        "Enables the planner's use of joins that search an index for many rows at a time.", nullptr,
        &settings.enable_batched_join, settings.enable_batched_join, PGC_USERSET, GUC_EXPLAIN,
        nullptr, nullptr, nullptr);
    // Audits take time that sessions share, and teach the index for all of them.
    DefineCustomIntVariable(
        "ivfpq.audit_every", "Sets of how many searches one is audited.",
        "A background worker makes it again with a larger effort. 0 audits none.",
        &settings.audit_every, settings.audit_every, 0, INT_MAX, PGC_SUSET, 0, nullptr, nullptr,
        nullptr);
    define_service_settings();
    define_test_settings();
    compat_reserve_prefix("ivfpq");
    compat_reserve_prefix("pgwarp");
}

}  // namespace pgwarp
