// The conservation checker: pages, promises and table rows agree, page by page and name by name.
//   free + held + withheld page 0 = all pages of the slabs of a group; owned + free slabs = all slabs
//   page 0 is nobody's; a table entry's page is held by the row's request, in one row once
//   a page that a request may write (BlockTable::written) has that request as its only owner
//   every page held by a request lies in its row; released entries hold 0
//   committed <= allocated, which is a multiple of P
// Any test and the idle engine call audit(); check_step() is the cheap part for every step. An empty list is
// a clean bill, and costs no heap.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kv/block_table.h"
#include "kv/page_pool.h"

namespace quire::kv {

// O(groups + updates): the pool's counters, and what this step changed in the table.
std::vector<std::string> check_step(const PagePool& pool, const BlockTable& table,
                                    std::span<const TableUpdate> updates);

// Everything; walks all pages and rows.
std::vector<std::string> audit(const PagePool& pool, const BlockTable& table);

// At idle nothing may be held or promised but by the prefix tree (PrefixTree::check() has its pages); each
// leak names its owner.
std::vector<std::string> leaks(const PagePool& pool);

}  // namespace quire::kv
