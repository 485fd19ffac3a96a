//! Decodes the finished bytes of a fragment along its entries.

use crate::encode::{EncodedInst, Fragment};
use crate::map::{Entry, Link};
use addr::Avma;
use code::InstId;
use iced_x86::{Decoder, DecoderOptions, Instruction};

/// One entry with its decoded instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step<'a> {
    pub(crate) entry: &'a Entry,
    /// The original instruction that was copied or dropped.
    pub(crate) inst: Option<InstId>,
    /// The address in the clone.
    pub(crate) at: Avma,
    /// The instruction; an invalid one if the entry has no bytes.
    pub(crate) got: Instruction,
    pub(crate) bytes: &'a [u8],
}

/// Decodes all entries of a fragment; `None` if bytes and entries do not match.
pub(crate) fn steps<'a>(fragment: &Fragment<'a>) -> Option<Vec<Step<'a>>> {
    let mut decoder = Decoder::with_ip(64, fragment.bytes, fragment.range.start.0, DecoderOptions::NONE);
    let step = |&EncodedInst { ref entry, inst }: &'a EncodedInst| {
        let at = fragment.address(entry);
        if at.0 != decoder.ip() {
            return None;
        }
        if entry.link == Link::Dropped {
            return Some(Step { entry, inst, at, got: Instruction::default(), bytes: &[] });
        }
        let got = decoder.decode();
        let bytes = fragment.bytes_from(entry)?.get(..got.len())?;
        (!got.is_invalid()).then_some(Step { entry, inst, at, got, bytes })
    };
    let steps = fragment.insts.iter().map(step).collect::<Option<Vec<_>>>()?;
    (decoder.ip() == fragment.range.end.0).then_some(steps)
}
