// Keys that need not be integers: uuid, text, varchar, integers, and domains over these.
//
// Kernels and files know keys as int64. Functions whose SQL declaration has keys as text give each
// key a number, in the order in which they meet them, and hand out its text again.
#pragma once

#include "extension/compat.h"

namespace pgwarp {

struct KeyNames;

// In the current memory context. Reports an error where the keys take more than `most_bytes`.
KeyNames* new_key_names(Size most_bytes);
// From now on, reports an error for a key that is too long for a btree index on (key, int4).
void require_short_keys(KeyNames* names);
// For a function that returns rows: null where this column of the result is no text, and keys are
// integers.
KeyNames* names_in_result(const ReturnSetInfo* result, int column, Size most_bytes);

// Whether keys may be of this type, and its base type. Null names: integers only.
bool is_key_type(const KeyNames* names, Oid type, Oid* base);
[[noreturn]] void report_key_type(const KeyNames* names, const char* column, const char* table,
                                  Oid type);
// The number of a key of this base type. Null names: its value.
int64 key_of(KeyNames* names, Datum value, Oid base);

// The number of a key, by its text. -1: find_key_name() has met none such.
int64 number_key_name(KeyNames* names, const text* name);
int64 find_key_name(const KeyNames* names, const text* name);

// A key as the result has it: text, valid until forget_key_names(); null names: int8.
Datum key_datum(const KeyNames* names, int64 key);
// The same for messages.
const char* key_text(const KeyNames* names, int64 key);
// In the order of bytes; null names: of numbers.
bool key_is_less(const KeyNames* names, int64 a, int64 b);

// All numbers become free: there are no keys any more.
void forget_key_names(KeyNames* names);

}  // namespace pgwarp
