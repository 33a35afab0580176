#include <cstring>

#include "extension/audit/audit.h"

extern "C" {
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
}

namespace pgwarp {

AuditShared* audits = nullptr;

namespace {

shmem_startup_hook_type previous_startup = nullptr;

constexpr const char* name = "pgwarp audits";

void startup() {
    if (previous_startup) previous_startup();
    LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
    bool found;
    audits = static_cast<AuditShared*>(ShmemInitStruct(name, sizeof(AuditShared), &found));
    if (!found) {
        // The ring is not touched before it is used.
        memset(static_cast<void*>(audits), 0, offsetof(AuditShared, ring));
        audits->lock = &GetNamedLWLockTranche(name)->lock;
        audits->allowance = most_allowance;
    }
    LWLockRelease(AddinShmemInitLock);
}

void request_memory() {
    RequestAddinShmemSpace(MAXALIGN(sizeof(AuditShared)));
    RequestNamedLWLockTranche(name, 1);
}

}  // namespace

void request_audits() {
    if (!process_shared_preload_libraries_in_progress) return;
    compat_request_shared_memory(request_memory);
    previous_startup = shmem_startup_hook;
    shmem_startup_hook = startup;
    hand_over_searches();
}

}  // namespace pgwarp
