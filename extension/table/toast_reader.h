// Reading the values of one table's TOAST relation by the dozen.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

// PostgreSQL opens and locks the TOAST relation and its index for every value; a scan that ranks
// candidates reads many from the same one. This keeps them open in between. It lives in the memory
// context that is current when it is opened; nothing stays pinned once a value was read.
struct ToastReader;
ToastReader* open_toast_reader(Relation heap);
void close_toast_reader(ToastReader* reader);

// The value in the current memory context. What is not a plain external value of that table goes
// PostgreSQL's way.
struct varlena* read_value(ToastReader* reader, Datum value);

}  // namespace pgwarp
