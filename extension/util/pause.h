// Points at which tests let a session wait, so that others run in the middle of what it does.
//
// A session whose pgwarp.debug_pause names a point waits there for the advisory lock
// (pause_class, 0), as pg_advisory_lock(23, 0) takes it, and goes on at once where it is free.
// Isolation tests see it wait. No point lies where a buffer is locked.
//
//   insert       the metapage was read, not yet the list's place
//   append       the list's tail was read, and is not locked yet
//   scan         the metapage was read
//   walk         between two pages of a list
//   batch        a batch of queries has read the pending list, and no other
//   vacuum       between two pages of a list
//   remove       VACUUM has seen dead entries on a page, and has locked nothing yet
//   train        the model is written, no pending entry has moved
//   move         VACUUM has read pending entries, and is going to move one
//   renew        the model of new lists is written, and no entry
//   replace      the new lists have all entries but a few
#pragma once

#include "extension/settings.h"

namespace pgwarp {

void wait_at(const char* point);

inline void pause_at(const char* point) {
    if (settings.pause && settings.pause[0]) wait_at(point);
}

}  // namespace pgwarp
