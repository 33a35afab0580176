// Reading many values of one TOAST relation.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

// PostgreSQL opens and locks the TOAST relation and its index for every value; a scan that ranks
// candidates reads many values of the same relation. The reader keeps both open in between. It
// lives in the memory context that is current when it is opened; no buffer stays pinned after a
// value is read.
struct ToastReader;
ToastReader* open_toast_reader(Relation heap);
void close_toast_reader(ToastReader* reader);

// Returns the detoasted value in the current memory context. PostgreSQL's own code reads everything
// but uncompressed external values of that table.
struct varlena* read_value(ToastReader* reader, Datum value);

}  // namespace pgwarp
