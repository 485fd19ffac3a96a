//! A process that claims to carry an anchor: what `status` meets in processes of any kind.
#![no_main]
use addr::{Avma, AvmaRange};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let page = AvmaRange::with_len(Avma(0x40_0000), bytes.len() as u64);
    let _ = splice::discover(&(page.start, bytes), &[page]);
    let _ = splice::decode_stub(&(page.start, bytes), page.start);
});
