//! Unwind tables: reads `.eh_frame` and `.gcc_except_table` of original code, and writes them for clones.
//!
//! Input: bytes and addresses. Output: the frame rule of every instruction and the exception table of every
//! function, as plain data. From such data it also writes the sections of a clone. The crate reads no process
//! and no code bytes.
#![forbid(unsafe_code)]

mod cfi;
mod debug_frame;
mod error;
mod frames;
mod leb;
mod lsda_read;
mod lsda_write;
mod model;
mod pointer;
mod rows;
mod table;

pub use debug_frame::write_debug_frame;
pub use error::Error;
pub use frames::{Frames, write_frames};
pub use model::*;
pub use table::FrameTable;
