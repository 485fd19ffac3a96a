//! How does a frame unwind: `.eh_frame` and `.gcc_except_table`, read from original code and written for clones.
//!
//! You give bytes and addresses; it gives the frame rule of every instruction and the exception table of every
//! function as plain data, and from such data the sections a clone needs. No process, no code bytes.
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
