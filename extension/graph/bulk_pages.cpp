#include "extension/graph/bulk_pages.h"
#include "extension/util/large_memory.h"

extern "C" {
#include "access/xlog.h"
#include "access/xloginsert.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/checksum.h"
#include "storage/smgr.h"
}

namespace pgwarp {

namespace {

// Code of the user's runs between two calls of this file, in a view or in an expression, and may
// write to the relation.
void check_end(const BulkPages* pages) {
    if (RelationGetNumberOfBlocks(pages->relation) == pages->first) return;
    ereport(ERROR, (errcode(ERRCODE_OBJECT_IN_USE),
                    errmsg("relation \"%s\" was written to while it was filled",
                           RelationGetRelationName(pages->relation))));
}

void write_pages(BulkPages* pages) {
    CHECK_FOR_INTERRUPTS();
    check_end(pages);
    if (pages->count == 0) return;
    Relation relation = pages->relation;
    if (pages->logged) {
        BlockNumber blocks[BulkPages::at_once];
        Page images[BulkPages::at_once];
        for (int i = 0; i < pages->count; ++i) {
            blocks[i] = pages->first + static_cast<BlockNumber>(i);
            images[i] = pages->pages + Size{BLCKSZ} * static_cast<Size>(i);
        }
        log_newpages(&compat_locator(relation), MAIN_FORKNUM, pages->count, blocks, images, true);
    }
    for (int i = 0; i < pages->count; ++i) {
        char* page = pages->pages + Size{BLCKSZ} * static_cast<Size>(i);
        const BlockNumber block = pages->first + static_cast<BlockNumber>(i);
        compat_set_checksum(page, block);
        // Not skipping the sync: the next checkpoint is asked for one.
        smgrextend(RelationGetSmgr(relation), MAIN_FORKNUM, block, page, false);
    }
    pages->first += static_cast<BlockNumber>(pages->count);
    pages->count = 0;
}

}  // namespace

BulkPages* open_bulk_pages(Relation relation) {
    BulkPages* pages = static_cast<BulkPages*>(palloc0(sizeof(BulkPages)));
    pages->relation = relation;
    pages->logged = RelationNeedsWAL(relation);
    pages->redo = GetRedoRecPtr();
    pages->first = RelationGetNumberOfBlocks(relation);
    pages->pages = alloc_pages(BulkPages::at_once);
    return pages;
}

BlockNumber next_block(const BulkPages* pages) {
    return pages->first + static_cast<BlockNumber>(pages->count);
}

Page add_page(BulkPages* pages) {
    if (pages->count == BulkPages::at_once) write_pages(pages);
    return pages->pages + Size{BLCKSZ} * static_cast<Size>(pages->count++);
}

void close_bulk_pages(BulkPages* pages) {
    write_pages(pages);
    // A checkpoint that began meanwhile lets recovery begin behind records of ours, and may have
    // synced the file before their pages were written. Without one, the next checkpoint syncs all
    // pages: it was asked to before this look at its pointer.
    if (pages->logged && GetRedoRecPtr() != pages->redo)
        smgrimmedsync(RelationGetSmgr(pages->relation), MAIN_FORKNUM);
}

}  // namespace pgwarp
