//! A frame table (`.eh_frame`) and the rows of all its functions.
#![no_main]
use addr::{Addr, Avma};
use unwind::FrameTable;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let at = Avma(0x7f00_0000_1000);
    // All of them, and those at addresses that the first bytes give.
    let listed: Vec<Avma> = bytes.iter().take(16).map(|b| at.add(u64::from(*b))).collect();
    let all = FrameTable::parse(bytes.to_vec(), at, &(at, bytes));
    let some = FrameTable::parse_listed(bytes.to_vec(), at, &listed, &(at, bytes));
    for table in [all, some].into_iter().flatten() {
        table.fdes().iter().for_each(|fde| drop(table.rows(fde)));
    }
});
