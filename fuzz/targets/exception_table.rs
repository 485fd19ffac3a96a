//! An exception table (LSDA); what was read can be written and read again.
#![no_main]
use addr::{Avma, AvmaRange};
use unwind::Lsda;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let (at, function) = (Avma(0x8000), AvmaRange::with_len(Avma(0x1000), 0x10_0000));
    if let Ok(written) = Lsda::parse(&(at, bytes), at, function).and_then(|t| t.write(function.start)) {
        Lsda::parse(&(at, &written[..]), at, function).unwrap();
    }
});
