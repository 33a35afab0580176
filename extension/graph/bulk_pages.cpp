#include "extension/graph/bulk_pages.h"

extern "C" {
#include "access/xlog.h"
#include "access/xloginsert.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/checksum.h"
#include "storage/smgr.h"
}

namespace pgwarp {

BulkFile begin_bulk_file(Relation relation) {
    return {relation, GetRedoRecPtr(), RelationGetNumberOfBlocks(relation)};
}

BlockNumber add_blocks(BulkFile* file, int count) {
    CHECK_FOR_INTERRUPTS();
    // Code of the user's runs between two calls, in a view or in an expression.
    if (RelationGetNumberOfBlocks(file->relation) != file->end)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_IN_USE),
                        errmsg("relation \"%s\" was written to while it was filled",
                               RelationGetRelationName(file->relation))));
    alignas(4096) static char empty[BLCKSZ];
    const BlockNumber first = file->end;
    file->end += static_cast<BlockNumber>(count);
    smgrextend(RelationGetSmgr(file->relation), MAIN_FORKNUM, file->end - 1, empty, true);
    return first;
}

void end_bulk_file(const BulkFile& file) {
    // A checkpoint that began meanwhile lets recovery begin behind our records, and may have synced
    // the file before pages were written. Without one, the next checkpoint syncs all pages: it was
    // asked to by write_bulk_pages(), before this look at its pointer.
    if (GetRedoRecPtr() != file.redo) smgrimmedsync(RelationGetSmgr(file.relation), MAIN_FORKNUM);
}

void write_bulk_pages(Relation relation, BlockNumber first, int count, char* pages) {
    const auto page = [&](int i) { return pages + Size{BLCKSZ} * static_cast<Size>(i); };
    if (RelationNeedsWAL(relation)) {
        BlockNumber blocks[most_bulk_pages];
        Page images[most_bulk_pages];
        for (int i = 0; i < count; ++i) {
            blocks[i] = first + static_cast<BlockNumber>(i);
            images[i] = page(i);
        }
        log_newpages(&compat_locator(relation), MAIN_FORKNUM, count, blocks, images, true);
    }
    for (int i = 0; i < count; ++i) {
        const BlockNumber block = first + static_cast<BlockNumber>(i);
        compat_set_checksum(page(i), block);
        // The last page of each segment of the file asks for a sync of this, when the others are
        // written: a checkpoint that is under way may have served an earlier request.
        const bool more = i + 1 < count && (block + 1) % RELSEG_SIZE != 0;
        smgrwrite(RelationGetSmgr(relation), MAIN_FORKNUM, block, page(i), more);
    }
}

}  // namespace pgwarp
