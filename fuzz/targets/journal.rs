//! A journal's header and records.
#![no_main]
use addr::Avma;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = splice::parse_header(bytes, Avma(0x40_0000));
    let _ = splice::parse_records(bytes, Avma(0x40_0000));
    let _ = engine::read_maps(bytes);
});
