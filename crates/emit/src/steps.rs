//! The finished bytes of a fragment, decoded along its entries.

use crate::encode::Fragment;
use crate::map::{Entry, Link};
use addr::Avma;
use iced_x86::{Decoder, DecoderOptions, Instruction};

/// One entry and what is there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step<'a> {
    pub(crate) entry: &'a Entry,
    /// Index of the original instruction of which it is the copy, or which was dropped.
    pub(crate) inst: Option<u32>,
    /// Where.
    pub(crate) at: Avma,
    /// The instruction; an invalid one where no bytes are there for the entry.
    pub(crate) got: Instruction,
    pub(crate) bytes: &'a [u8],
}

/// Goes from entry to entry.
pub(crate) struct Steps<'a> {
    fragment: &'a Fragment<'a>,
    decoder: Decoder<'a>,
    next: usize,
}

impl<'a> Steps<'a> {
    pub(crate) fn new(fragment: &'a Fragment<'a>) -> Self {
        let decoder = Decoder::with_ip(64, fragment.bytes, fragment.range.start.0, DecoderOptions::NONE);
        Self { fragment, decoder, next: 0 }
    }

    /// The next entry; `Some(None)` behind the last, `None` where bytes and entries do not go together.
    pub(crate) fn next(&mut self) -> Option<Option<Step<'a>>> {
        let Some(entry) = self.fragment.entries.get(self.next) else { return Some(None) };
        let inst = *self.fragment.insts.get(self.next)?;
        self.next += 1;
        let at = self.fragment.address(entry);
        if at != self.ip() {
            return None;
        }
        if entry.link == Link::Dropped {
            return Some(Some(Step { entry, inst, at, got: Instruction::default(), bytes: &[] }));
        }
        let got = self.decoder.decode();
        let bytes = self.fragment.bytes_from(entry)?.get(..got.len())?;
        (!got.is_invalid()).then_some(Some(Step { entry, inst, at, got, bytes }))
    }

    /// Where the next instruction begins.
    pub(crate) fn ip(&self) -> Avma {
        Avma(self.decoder.ip())
    }
}
