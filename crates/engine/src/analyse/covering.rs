//! Finds the instruction that contains a byte of code.

use addr::{Avma, AvmaRange};
use iced_x86::{Decoder, DecoderOptions, Instruction};
use unwind::FrameTable;

/// Returns the instruction that contains the byte at `at`. Decodes from the start of the function, or of the
/// gap between functions. `bytes` returns the code of a range. Returns `None` if the code does not decode.
pub(crate) fn instruction<'a>(
    frames: &FrameTable,
    bytes: impl FnOnce(AvmaRange) -> Option<&'a [u8]>,
    at: Avma,
) -> Option<Instruction> {
    let range = match frames.find(at) {
        Some(f) => f.range,
        None => {
            let before = frames.fdes().iter().map(|f| f.range.end).filter(|end| *end <= at).max()?;
            let behind = frames.fdes().iter().map(|f| f.range.start).filter(|start| *start > at).min()?;
            AvmaRange::new(before, behind)
        }
    };
    let mut decoder = Decoder::with_ip(64, bytes(range)?, range.start.0, DecoderOptions::NONE);
    decoder.iter().take_while(|i| !i.is_invalid()).find(|i| i.next_ip() > at.0)
}
