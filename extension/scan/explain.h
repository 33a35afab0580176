// What EXPLAIN ANALYZE tells of an ivfpq scan.
#pragma once

namespace pgwarp {

// From PostgreSQL 18 on; before, ivfpq_last_scan() tells the last scan of the session.
void install_explain_hook();

}  // namespace pgwarp
