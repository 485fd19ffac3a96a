//! A frame table (`.eh_frame`) and the rows of all its functions.
#![no_main]
use addr::Avma;
use unwind::FrameTable;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let at = Avma(0x7f00_0000_1000);
    if let Ok(table) = FrameTable::parse(bytes.to_vec(), at, &(at, bytes)) {
        table.fdes().iter().for_each(|fde| drop(table.rows(fde)));
    }
});
