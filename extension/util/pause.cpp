#include <cstring>

#include "extension/compat.h"
#include "extension/util/pause.h"

extern "C" {
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
}

namespace pgwarp {

namespace {

constexpr uint32 pause_class = 23;
// As for pg_advisory_lock() with two arguments.
constexpr uint16 two_keys = 2;

}  // namespace

void wait_at(const char* point) {
    // Passes of the point since the settings were last other ones.
    static char last_point[NAMEDATALEN] = "";
    static int last_after = 0;
    static int passes = 0;
    if (strcmp(settings.pause, point) != 0) return;
    if (strcmp(last_point, point) != 0 || last_after != settings.pause_after) {
        strlcpy(last_point, point, sizeof(last_point));
        last_after = settings.pause_after;
        passes = 0;
    }
    if (passes++ < settings.pause_after) return;
    LOCKTAG tag;
    SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, pause_class, 0, two_keys);
    LockAcquire(&tag, ShareLock, false, false);
    LockRelease(&tag, ShareLock, false);
}

}  // namespace pgwarp
