//! Shared memory in huge pages: memory that several processes map, such as PostgreSQL's shared buffers.
//!
//! The kernel moves it on request (`MADV_COLLAPSE`), through one process that has it mapped, for all of them: before
//! Linux 6.6 for that one process alone, so such kernels are left out. Nothing is stopped, written or recorded. Nothing
//! can be undone either: the pages stay huge until the memory is freed.
//!
//! Private memory is not moved. The kernel holds the lock of the process's mappings while it copies each 2 MiB of it
//! (`collapse_huge_page()`, Linux 6.18), so no thread can map memory meanwhile: on a busy host most calls took 10 to 30
//! ms while 1 GiB was moved. Shared memory is copied without that lock (`collapse_file()`). The kernel holds the lock
//! only while it waits for work on every CPU (`lru_add_drain_all()`), and only that of the process through which it is
//! asked: [`quiet`] chooses one that has nothing to do.

mod asking;
mod choose;
pub(crate) mod huge_pages;
mod moving;
mod quiet;
pub(crate) mod report;
mod room;
